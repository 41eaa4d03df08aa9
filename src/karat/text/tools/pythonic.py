"""Llama's pythonic calls: the answer is a list such as [weather(city='Oslo', days=3), clock()]."""

from karat.text.tools.format import Reading, Shape, Sink, ToolFormat, literal, name, space
from karat.text.tools.llama import TAG
from karat.text.tools.values import SPACE, MalformedError, ValueScan


def _read(opening: str, sink: Sink) -> Reading[None]:
    yield from literal("[", (yield from space()) if opening == TAG else opening)
    while True:
        called, char = yield from name((yield from space()))
        yield from literal("(", char)
        sink.begin(called)
        yield from _keywords(sink)
        sink.end()
        char = yield from space()
        if char == "]":
            return
        yield from literal(",", char)


def _keywords(sink: Sink) -> Reading[None]:
    """name=value, … and the closing parenthesis, as a JSON object."""
    sink.write("{")
    char = yield from space()
    found: set[str] = set()
    while char != ")":
        key, char = yield from name(char)
        char = (yield from space()) if char and char in SPACE else char
        yield from literal("=", char)
        if key in found:
            raise MalformedError
        sink.write((", " if found else "") + f'"{key}": ')
        found.add(key)
        char = yield from _value((yield from space()), sink)
        if char == ",":
            char = yield from space()
        elif char != ")":
            raise MalformedError
    sink.write("}")


def _value(char: str, sink: Sink) -> Reading[str]:
    """A Python value from `char` on, and the next character after it that is no white space."""
    scan = ValueScan(sink.write, python=True)
    while scan.push(char):
        char = yield
        if scan.done:
            break
    return (yield from space()) if char and char in SPACE else char


PYTHONIC = ToolFormat(
    "pythonic",
    _read,
    Shape(opening="[", before="", between="(", after=")", separator=", ", closing="]", keywords=True),
    marks=(TAG,),
    at_start="[",
    hints=("func_name1(params_name1=", "func_name(params_name1="),
)
