"""ATEM: Muse Glimmer's answers are messages to somebody: to=self is reasoning, to=user the answer, others are calls."""

import json
from collections.abc import Callable

from karat.text.tools.format import (
    MESSAGE,
    ROLE,
    START,
    CallShape,
    Channels,
    Reading,
    Sink,
    ToolFormat,
    literal,
    recipient_of,
    space,
)
from karat.text.tools.xml import Tags, calls

SELF, USER = "self", "user"
END_OF_MESSAGE, END_OF_TURN = "<|eom|>", "<|eot|>"
_OPENING = "<atem:function_calls>"
_TAGS = Tags(
    function='<atem:invoke name="',
    parameter='<atem:parameter name="',
    behind_name='">',
    end_parameter="</atem:parameter>",
    end_function="</atem:invoke>",
    closing="</atem:function_calls>",
    padded=False,
)


def _tool_of(header: str) -> str:
    found = recipient_of(header)
    return "" if found in (SELF, USER) else found


def _read(_: str, sink: Sink) -> Reading[None]:
    """The calls of a message to a tool, whose tags have its name again."""
    yield from literal(_OPENING, (yield from space()))
    yield from literal(_TAGS.function, (yield from space()))
    yield from calls(_TAGS, sink)


def _before_call(tool: str, terms: Callable[[str], str]) -> str:
    return terms(f" to={tool}{MESSAGE}{_OPENING}\n{_TAGS.function}{tool}{_TAGS.behind_name}\n")


def _rules(speaks: bool, _: bool, terms: Callable[[str], str]) -> dict[str, str]:
    to_self, to_user = json.dumps(f" to={SELF}"), json.dumps(f" to={USER}")
    return {
        "thought": f"({to_self} | {to_user}) {terms(MESSAGE)}" if speaks else f"{to_self} {terms(MESSAGE)}",
        "last": f"{to_user} {terms(MESSAGE)}",
    }


ATEM = ToolFormat(
    "atem",
    _read,
    CallShape(
        opening="",
        before=" to=",
        again=f"{MESSAGE}{_OPENING}\n{_TAGS.function}",
        between=f"{_TAGS.behind_name}\n",
        after=f"{_TAGS.end_function}\n{_TAGS.closing}",
        separator=f"{END_OF_MESSAGE}{START}{ROLE}",
        parameter=(_TAGS.parameter, _TAGS.behind_name, _TAGS.end_parameter + "\n"),
    ),
    marks=(START + ROLE,),
    hints=(_OPENING,),
    channels=Channels(
        turn_ends=(END_OF_TURN,),
        message_end=END_OF_MESSAGE,
        first=(),
        inner=(),
        tool_of=_tool_of,
        is_thought=lambda header: recipient_of(header) == SELF,
        is_answer=lambda header: recipient_of(header) in ("", USER),
        before_call=_before_call,
        rules=_rules,
    ),
)
