"""OLMo 3 (Ai2): Python's calls, one a line, between two tags; truth values and null may be JSON's."""

from karat.text.tools.format import CallShape, Reading, Sink, ToolFormat, literal, name, space
from karat.text.tools.pythonic import keywords

_OPENING, _CLOSING = "<function_calls>", "</function_calls>"


def _read(_opening: str, sink: Sink) -> Reading[None]:
    """The calls, and the tag that closes them, which the end of the answer may stand for."""
    char = yield from space()
    while True:
        called, char = yield from name(char)
        yield from literal("(", char)
        sink.begin(called)
        yield from keywords(sink)
        sink.end()
        char = yield from space()
        if char in ("", "<"):
            break
    if char:
        yield from literal(_CLOSING, char)


OLMO = ToolFormat(
    "olmo",
    _read,
    CallShape(opening=_OPENING, before="", between="(", after=")", separator="\n", closing=_CLOSING, keywords=True),
    marks=(_OPENING,),
    hints=(_OPENING,),
)
