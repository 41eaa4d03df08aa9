"""Llama's pythonic calls: the answer is a list such as [weather(city='Oslo', days=3), clock()]."""

import json
from typing import Any

from karat.text.tools.format import CallShape, Reading, Sink, ToolFormat, literal, name, space
from karat.text.tools.llama import TAG
from karat.text.tools.values import SPACE, MalformedError, ValueScan


def _read(opening: str, sink: Sink) -> Reading[None]:
    yield from literal("[", (yield from space()) if opening == TAG else opening)
    while True:
        called, char = yield from name((yield from space()))
        yield from literal("(", char)
        sink.begin(called)
        yield from keywords(sink)
        sink.end()
        char = yield from space()
        if char == "]":
            return
        yield from literal(",", char)


def keywords(sink: Sink) -> Reading[None]:
    """name=value, … and the closing parenthesis, as a JSON object without its last brace."""
    char = yield from space()
    found: set[str] = set()
    while char != ")":
        key, char = yield from name(char)
        char = (yield from space()) if char and char in SPACE else char
        yield from literal("=", char)
        if key in found:
            raise MalformedError
        before = (", " if found else "{") + f'"{key}": '
        found.add(key)
        char = yield from python_value(before, (yield from space()), sink)
        if char == ",":
            sink.hold()
            char = yield from space()
        elif char != ")":
            raise MalformedError
    if not found:
        sink.write("{")


def python_value(before: str, char: str, sink: Sink) -> Reading[str]:
    """A Python value from `char` on, and the next character after it that is no white space. It is written after
    `before`.
    """

    def write(text: str) -> None:
        nonlocal before
        sink.write(before + text)
        before = ""

    scan = ValueScan(write, python=True)
    while scan.push(char):
        char = yield
        if scan.done:
            break
    return (yield from space()) if char and char in SPACE else char


def written_value(value: Any) -> str:
    """An argument of an earlier answer as Python writes it, its texts between double quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(written_value, value))}]"
    if isinstance(value, dict):
        inner = (f"{written_value(key)}: {written_value(each)}" for key, each in value.items())
        return f"{{{', '.join(inner)}}}"
    return repr(value) if value is None or isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


PYTHONIC = ToolFormat(
    "pythonic",
    _read,
    CallShape(opening="[", before="", between="(", after=")", separator=", ", closing="]", keywords=True),
    marks=(TAG,),
    at_start="[",
    hints=("func_name1(params_name1=", "func_name(params_name1="),
)
