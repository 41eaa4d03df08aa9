"""Calls as XML: Qwen3-Coder, Qwen 3.5 and Step, in <tool_call>, and Seed-OSS, in <seed:tool_call>.

A value of a parameter is bare text. What its text means follows from the tool's schema (`karat.text.tools.bare`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from karat.text.tools.bare import as_json, kinds_of
from karat.text.tools.format import CallShape, Reading, Sink, ToolFormat, literal, name, space
from karat.text.tools.values import SPACE, MalformedError

_FUNCTION, _PARAMETER, _END_PARAMETER, _END_FUNCTION = "<function=", "<parameter=", "</parameter>", "</function>"
_MAX_SPACE = 64  # characters between a tag that ends a value and the next tag


def xml_format(form: str, opening: str, closing: str, *, line_end: str) -> ToolFormat:
    """Calls between `opening` and `closing`, with a `line_end` around each value."""

    def read(begun: str, sink: Sink) -> Reading[None]:
        if begun != _FUNCTION:
            yield from literal(_FUNCTION, (yield from space()))
        while True:
            yield from _call(closing, sink)
            found = yield from _tag((_FUNCTION, closing), (yield from space()), may_end=True)
            if found != _FUNCTION:
                return

    return ToolFormat(
        form,
        read,
        CallShape(
            opening=opening,
            before="\n<function=",
            between=">\n",
            after="</function>\n",
            separator="\n",
            closing=closing,
            each=True,
            parameter=(_PARAMETER, ">" + line_end, line_end + _END_PARAMETER + "\n"),
        ),
        marks=(opening, _FUNCTION),  # models leave out the tag around a call
        hints=(f"{opening}\n{_FUNCTION}", f"{opening}\\n{_FUNCTION}"),
    )


def _call(closing: str, sink: Sink) -> Reading[None]:
    """A call from its name on, up to the tag that ends it."""
    called, char = yield from name((yield))
    yield from literal(">", char)
    schema = sink.begin(called)
    found = yield from _tag((_PARAMETER, _END_FUNCTION), (yield from space()))
    before = "{"
    while found == _PARAMETER:
        key = yield from _key()
        found = yield from _value(
            f"{before}{json.dumps(key, ensure_ascii=False)}: ", kinds_of(schema, key), closing, sink
        )
        before = ", "
    if before == "{":
        sink.write(before)
    sink.end()


def _tag(tags: Sequence[str], char: str, *, may_end: bool = False) -> Reading[str]:
    """Which of the tags begins with `char`; "" for the end of the answer."""
    if may_end and not char:
        return ""
    text = char
    while char and text not in tags and any(tag.startswith(text) for tag in tags):
        char = yield
        text += char
    if text not in tags:
        raise MalformedError
    return text


def _key() -> Reading[str]:
    found: list[str] = []
    while (char := (yield)) != ">":
        if not char or char in "<\n" or len(found) > 256:
            raise MalformedError
        found.append(char)
    return "".join(found)


def _value(before: str, kinds: frozenset[str], closing: str, sink: Sink) -> Reading[str]:
    """A value, written after `before`, and the tag that follows it: another parameter's, or the end of the call.

    Texts are told as they come. A value ends at a closing tag that such a tag follows: any other is part of the value.
    """
    is_text = kinds == {"string"}
    taken: list[str] = []
    is_first, held = True, ""
    if is_text:
        before += '"'

    def take(text: str) -> None:
        nonlocal before
        if is_text and text:
            sink.write(before + json.dumps(text, ensure_ascii=False)[1:-1])
            before = ""
        taken.append(text)

    while True:
        char = yield
        if not char:
            raise MalformedError
        if is_first and char == "\n":
            is_first = False
            continue
        is_first = False
        held += char
        while held and (end := _end_in(held, closing)) is None:
            take(held[0])
            held = held[1:]
        if held and end:
            break
    sink.write(before + ('"' if is_text else as_json("".join(taken), kinds)))
    sink.hold()
    return end


def _end_in(held: str, closing: str) -> str | None:
    """The tag after the end of a value with which `held` ends; "" where it may be one, None where it is none."""
    text = held.removeprefix("\n")
    for tag, nexts in ((_END_PARAMETER, (_PARAMETER, _END_FUNCTION)), (_END_FUNCTION, (closing,))):
        if tag.startswith(text):
            return ""
        if not text.startswith(tag):
            continue
        rest = text[len(tag) :]
        after = rest.lstrip(SPACE)
        if len(rest) - len(after) > _MAX_SPACE:
            return None
        for follows in nexts:
            if after == follows:
                return _END_FUNCTION if tag == _END_FUNCTION else follows
            if follows.startswith(after):
                return ""
    return None


QWEN_XML = xml_format("qwen-xml", "<tool_call>", "</tool_call>", line_end="\n")
SEED_XML = xml_format("seed-xml", "<seed:tool_call>", "</seed:tool_call>", line_end="")


def written_parameters(shape: CallShape, arguments: Mapping[str, Any]) -> str:
    """The arguments of a call of an earlier answer."""
    assert shape.parameter is not None
    before, between, after = shape.parameter
    return "".join(
        f"{before}{key}{between}{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}{after}"
        for key, value in arguments.items()
    )
