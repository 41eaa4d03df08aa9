"""Harmony: gpt-oss' answers are messages, each in a channel; calls are messages to a tool."""

import json
import re
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
    json_object,
    recipient_of,
    space,
)

CHANNEL, CONSTRAIN = "<|channel|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
TOOLS = "functions."
THOUGHT, ASIDE, ANSWER = "analysis", "commentary", "final"  # the channels
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*([^\s<]*)")


def channel_of(header: str) -> str:
    """The channel that a message's header names, which ends with <|message|>; empty if it names none."""
    found = _CHANNEL.findall(header)
    return found[-1] if found else ""


def _read(header: str, sink: Sink) -> Reading[None]:
    """The arguments of the call that a header begins."""
    char = yield from space()
    sink.begin(recipient_of(header).removeprefix(TOOLS))
    yield from json_object(char, sink)
    sink.end()


def _before_call(tool: str, terms: Callable[[str], str]) -> str:
    """Models name the tool on either side of the channel."""
    to = json.dumps(f" to={TOOLS}{tool}")
    channel, message = terms(CHANNEL), terms(MESSAGE)
    return f"({to} {channel} thinking kind | {channel} thinking {to} kind) {message}"


def _rules(speaks: bool, is_form: bool, terms: Callable[[str], str]) -> dict[str, str]:
    channel, message = terms(CHANNEL), terms(MESSAGE)
    return {
        "thinking": f'"{THOUGHT}" | "{ASIDE}"',
        "kind": f'"" | " json" | " "? {terms(CONSTRAIN)} "json"',
        "thought": f"{channel} {'thinking' if speaks else json.dumps(THOUGHT)} {message}",
        "last": f'{channel} "{ANSWER}" {"kind" if is_form else ""} {message}',
    }


HARMONY = ToolFormat(
    "harmony",
    _read,
    CallShape(
        opening="",
        before=f" to={TOOLS}",
        between=f"{CHANNEL}{ASIDE} {CONSTRAIN}json{MESSAGE}",
        after="",
        separator=f"{CALL}{START}{ROLE}",
    ),
    marks=(START + ROLE,),
    hints=(f"{START}{ROLE}{CHANNEL}{ANSWER}{MESSAGE}",),
    channels=Channels(
        turn_ends=(CALL, RETURN),
        message_end=END,
        first=(CHANNEL,),
        inner=(CHANNEL, CONSTRAIN),
        tool_of=recipient_of,
        is_thought=lambda header: channel_of(header) == THOUGHT,
        is_answer=lambda header: channel_of(header) not in (THOUGHT, ASIDE),
        before_call=_before_call,
        rules=_rules,
    ),
    efforts=("low", "medium", "high"),
)
