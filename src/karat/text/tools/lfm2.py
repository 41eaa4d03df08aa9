"""LFM2 (Liquid AI): a list of Python's calls between two special tokens, or one of JSON's, where it is asked for.

LFM2.5's template writes a text between quotes as it is, with the quotes and line ends in it, and models write as they
were shown. So a quote ends a text only where the rest of a call follows it: another argument, or the end.
"""

import re

from karat.text.tools.format import CallShape, Reading, Sink, ToolFormat, call_list, literal, name, space
from karat.text.tools.pythonic import python_value
from karat.text.tools.values import SPACE, MalformedError, ValueScan

_OPENING, _CLOSING = "<|tool_call_start|>", "<|tool_call_end|>"
_MAX_AFTER = 128  # characters after a quote until it is known whether it ends a text
_END = ")"  # in place of the next argument's name
_REST = re.compile(r"\s*(?:,\s*(?P<key>[A-Za-z0-9_.-]+)\s*=|\)\s*(?P<after>[,\]]))", re.ASCII)
_BEGUN = re.compile(r"\s*(?:,\s*(?:[A-Za-z0-9_.-]+\s*)?|\)\s*)?", re.ASCII)
_NO_REST = ("", "")


def _read(_opening: str, sink: Sink) -> Reading[None]:
    """The list, and the token that closes it, which the end of the answer may stand for."""
    yield from literal("[", (yield from space()))
    char = yield from space()
    if char == "{":
        yield from call_list(char, sink)
    else:
        while (yield from _call(char, sink)) == ",":
            char = yield from space()
    if char := (yield from space()):
        yield from literal(_CLOSING, char)


def _call(char: str, sink: Sink) -> Reading[str]:
    """A call from its name on, and the comma or bracket after it."""
    called, char = yield from name(char)
    yield from literal("(", char)
    sink.begin(called)
    char = yield from space()
    if char == ")":
        sink.write("{")
        sink.end()
        return (yield from _after_call())
    key, found = (yield from _key(char)), set[str]()
    while True:
        char = yield from space()
        if key in found:
            raise MalformedError
        before = (", " if found else "{") + f'"{key}": '
        found.add(key)
        if char in ("'", '"'):
            key, after = yield from _text(before, char, sink)
        else:
            key, after = yield from _other(before, char, sink)
        if key == _END:
            sink.end()
            return after


def _key(char: str) -> Reading[str]:
    """The name of an argument and the sign after it."""
    key, char = yield from name(char)
    yield from literal("=", (yield from space()) if char and char in SPACE else char)
    return key


def _after_call() -> Reading[str]:
    char = yield from space()
    if char not in (",", "]"):
        raise MalformedError
    return char


def _other(before: str, char: str, sink: Sink) -> Reading[tuple[str, str]]:
    """A value that is no text, the next argument's name or _END, and then what follows the call."""
    char = yield from python_value(before, char, sink)
    sink.hold()
    if char == ",":
        return (yield from _key((yield from space()))), ""
    yield from literal(")", char)
    return _END, (yield from _after_call())


def _text(before: str, quote: str, sink: Sink) -> Reading[tuple[str, str]]:
    """A text, and what `_other` gives."""

    def write(text: str) -> None:
        nonlocal before
        sink.write(before + text)
        before = ""

    scan = ValueScan(write, python=True)
    scan.push(quote)
    held = ""  # a quote, and what follows it
    while True:
        char = yield
        if not char:
            raise MalformedError
        held += char
        while held:
            if held[0] == quote:
                after = _rest_after(held[1:])
                if after is None:
                    break
                if after != _NO_REST:
                    scan.push(quote)
                    sink.hold()
                    return after
            if held[0] == "\\":
                if len(held) == 1:
                    break
                scan.push("\\")
                scan.push(held[1])
                held = held[2:]
                continue
            for each in _escaped(held[0], quote):
                scan.push(each)
            held = held[1:]


def _escaped(char: str, quote: str) -> str:
    """A character of a text as Python would write it."""
    return {quote: "\\" + quote, "\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char, char)


def _rest_after(text: str) -> tuple[str, str] | None:
    """What `_text` gives, if `text` is the rest of a call after a quote, up to the sign after an argument's name or to
    what follows the call. None if it may be the beginning of that, a pair of nothing if it is neither.
    """
    if rest := _REST.fullmatch(text):
        return (rest["key"], "") if rest["key"] else (_END, rest["after"])
    return None if len(text) < _MAX_AFTER and _BEGUN.fullmatch(text) else _NO_REST


LFM2 = ToolFormat(
    "lfm2",
    _read,
    CallShape(
        opening=_OPENING + "[", before="", between="(", after=")", separator=", ", closing="]" + _CLOSING, keywords=True
    ),
    marks=(_OPENING,),
    hints=(_OPENING, "List of tools: [", "List of tools: <|tool_list_start|>"),
)
