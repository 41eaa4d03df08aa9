"""Calls as XML: Qwen3-Coder, Qwen 3.5 and Step, in <tool_call>, and Seed-OSS, in <seed:tool_call>.

A value of a parameter is bare text. What its text means follows from the tool's schema (`karat.text.tools.bare`).
`karat.text.tools.atem` has other tags.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from karat.text.tools.bare import as_json, kinds_of
from karat.text.tools.format import CallShape, Reading, Sink, ToolFormat, literal, name, space
from karat.text.tools.values import SPACE, MalformedError

_MAX_SPACE = 64  # characters between a tag that ends a value and the next tag


@dataclass(frozen=True, slots=True)
class Tags:
    """What stands before the names of functions and parameters, behind them, and at the ends of both.

    `closing` ends all calls. `padded`: a line end at either end of a value may be of the tags around it.
    """

    function: str
    parameter: str
    behind_name: str
    end_parameter: str
    end_function: str
    closing: str
    padded: bool


def xml_format(form: str, opening: str, closing: str, *, line_end: str) -> ToolFormat:
    """Calls between `opening` and `closing`, with a `line_end` around each value."""

    tags = Tags("<function=", "<parameter=", ">", "</parameter>", "</function>", closing, padded=True)

    def read(begun: str, sink: Sink) -> Reading[None]:
        if begun != tags.function:
            yield from literal(tags.function, (yield from space()))
        yield from calls(tags, sink)

    return ToolFormat(
        form,
        read,
        CallShape(
            opening=opening,
            before="\n" + tags.function,
            between=">\n",
            after=tags.end_function + "\n",
            separator="\n",
            closing=closing,
            each=True,
            parameter=(tags.parameter, ">" + line_end, line_end + tags.end_parameter + "\n"),
        ),
        marks=(opening, tags.function),  # models leave out the tag around a call
        hints=(f"{opening}\n{tags.function}", f"{opening}\\n{tags.function}"),
    )


def calls(tags: Tags, sink: Sink) -> Reading[None]:
    """One call or several, from the first one's name on, up to the tag that ends all, or the end of the answer."""
    while True:
        yield from _call(tags, sink)
        found = yield from _tag((tags.function, tags.closing), (yield from space()), may_end=True)
        if found != tags.function:
            return


def _call(tags: Tags, sink: Sink) -> Reading[None]:
    """A call from its name on, up to the tag that ends it."""
    called, char = yield from name((yield))
    yield from literal(tags.behind_name, char)
    schema = sink.begin(called)
    found = yield from _tag((tags.parameter, tags.end_function), (yield from space()))
    before = "{"
    while found == tags.parameter:
        key = yield from _key(tags.behind_name)
        found = yield from _value(f"{before}{json.dumps(key, ensure_ascii=False)}: ", kinds_of(schema, key), tags, sink)
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


def _key(behind: str) -> Reading[str]:
    found = ""
    while not found.endswith(behind):
        char = yield
        if not char or char in "<\n" or len(found) > 256:
            raise MalformedError
        found += char
    return found.removesuffix(behind)


def _value(before: str, kinds: frozenset[str], tags: Tags, sink: Sink) -> Reading[str]:
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
        if is_first and char == "\n" and tags.padded:
            is_first = False
            continue
        is_first = False
        held += char
        while held and (end := _end_in(held, tags)) is None:
            take(held[0])
            held = held[1:]
        if held and end:
            break
    sink.write(before + ('"' if is_text else as_json("".join(taken), kinds)))
    sink.hold()
    return end


def _end_in(held: str, tags: Tags) -> str | None:
    """The tag after the end of a value with which `held` ends; "" where it may be one, None where it is none."""
    text = held.removeprefix("\n") if tags.padded else held
    for tag, nexts in (
        (tags.end_parameter, (tags.parameter, tags.end_function)),
        (tags.end_function, (tags.closing,)),
    ):
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
                return tags.end_function if tag == tags.end_function else follows
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
