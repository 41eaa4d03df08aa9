"""Gemma 4 (Google): arguments as name:value, and texts between two of a token of their own, as they are.

<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:[1,2],units:{wind:<|"|>m/s<|"|>}}<tool_call|>
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from karat.text.tools.format import CallShape, Reading, Sink, ToolFormat, json_value, literal, name, space, string
from karat.text.tools.values import MAX_DEPTH, SPACE, MalformedError, ValueScan

Write = Callable[[str], None]
_OPENING, _CLOSING, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_NO_KEY = frozenset(',{}[]\n"<')
_MAX_KEY = 256  # characters
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def _read(_opening: str, sink: Sink) -> Reading[None]:
    """A call, and the token that closes it, which the end of the answer may stand for."""
    yield from literal("call:", (yield from space()))
    called, char = yield from name((yield))
    yield from literal("{", (yield from space()) if char and char in SPACE else char)
    sink.begin(called)
    yield from _members(sink.write, 1, after_value=sink.hold)
    sink.end()
    if char := (yield from space()):
        yield from literal(_CLOSING, char)


def _members(write: Write, depth: int, after_value: Callable[[], None] = lambda: None) -> Reading[None]:
    """name:value, … and the brace that closes them, as a JSON object without its last brace."""
    char = yield from space()
    before, found = "{", set[str]()
    while char != "}":
        key = yield from _key(char)
        if key in found:
            raise MalformedError
        found.add(key)
        named = f"{before}{json.dumps(key, ensure_ascii=False)}: "
        char = yield from _value(named, (yield from space()), write, depth)
        after_value()
        before = ", "
        if char == ",":
            char = yield from space()
        elif char != "}":
            raise MalformedError
    if not found:
        write("{")


def _key(char: str) -> Reading[str]:
    """A name, bare or between quotes, and the colon after it."""
    if char == "<":
        found: list[str] = []
        yield from literal(_QUOTE, char)
        yield from _text(found.append)
        key: str = json.loads("".join(found))
        char = yield from space()
    elif char == '"':
        key, char = (yield from string(char)), (yield from space())
    else:
        taken: list[str] = []
        while char and char not in _NO_KEY and char != ":" and len(taken) < _MAX_KEY:
            taken.append(char)
            char = yield
        key = "".join(taken).strip()
        if not key:
            raise MalformedError
    yield from literal(":", char)
    return key


def _value(before: str, char: str, write: Write, depth: int) -> Reading[str]:
    """A value from `char` on, written after `before`, and the next character after it that is no white space."""

    def joined(text: str) -> None:
        nonlocal before
        write(before + text)
        before = ""

    match char:
        case "<":
            yield from literal(_QUOTE, char)
            yield from _text(joined)
        case '"':
            yield from json_value(char, joined)
        case "{" | "[" if depth == MAX_DEPTH:
            raise MalformedError
        case "{":
            yield from _members(joined, depth + 1)
            joined("}")
        case "[":
            yield from _items(joined, depth + 1)
        case _:
            scan = ValueScan(joined, python=True)  # a number or a word, which may be Python's
            while scan.push(char):
                char = yield
            return (yield from space()) if char and char in SPACE else char
    return (yield from space())


def _items(write: Write, depth: int) -> Reading[None]:
    """Values and the bracket that closes them."""
    char = yield from space()
    if char == "]":
        write("[]")
        return
    before = "["
    while (char := (yield from _value(before, char, write, depth))) == ",":
        before, char = ", ", (yield from space())
    if char != "]":
        raise MalformedError
    write("]")


def _text(write: Write) -> Reading[None]:
    """A text up to its closing quote, as JSON. It is told as it comes."""
    write('"')
    held = ""
    while held != _QUOTE:
        char = yield
        if not char:
            raise MalformedError
        held += char
        if not _QUOTE.startswith(held):  # which has its first character once
            text, held = (held[:-1], char) if char == _QUOTE[0] else (held, "")
            if text:
                write(json.dumps(text, ensure_ascii=False)[1:-1])
    write('"')


def written_members(quote: str, arguments: Mapping[str, Any]) -> str:
    """The arguments of a call of an earlier answer, or members of an object. Names that are no words have quotes."""
    named = ((key if _WORD.fullmatch(key) else f"{quote}{key}{quote}", value) for key, value in arguments.items())
    return ",".join(f"{key}:{written_value(quote, value)}" for key, value in named)


def written_value(quote: str, value: Any) -> str:
    """A value, with its texts between two of `quote`."""
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case Mapping():
            return f"{{{written_members(quote, value)}}}"
        case list():
            return f"[{','.join(written_value(quote, each) for each in value)}]"
        case _:
            return json.dumps(value)


GEMMA = ToolFormat(
    "gemma",
    _read,
    CallShape(
        opening=_OPENING,
        before="call:",
        between="{",
        after="}",
        separator="",
        closing=_CLOSING,
        each=True,
        quote=_QUOTE,
    ),
    marks=(_OPENING,),
    hints=(_OPENING,),
    turn_end="<|tool_response>",
)
