"""Hermes and Qwen: each call is a JSON object in <tool_call> and </tool_call>."""

from collections.abc import Callable

from karat.text.tools.format import CallShape, Reading, Sink, ToolFormat, call_objects, literal, space


def tagged(closing: str) -> Callable[[str, Sink], Reading[None]]:
    """Reads one call, or an array of them, and the closing tag, if any, which the end of the answer may stand for."""

    def read(_opening: str, sink: Sink) -> Reading[None]:
        yield from call_objects((yield from space()), sink)
        if closing and (char := (yield from space())):
            yield from literal(closing, char)

    return read


read_tagged = tagged("</tool_call>")

HERMES = ToolFormat(
    "hermes",
    read_tagged,
    CallShape(
        opening="<tool_call>",
        before='\n{"name": "',
        between='", "arguments": ',
        after="}\n",
        separator="\n",
        closing="</tool_call>",
        each=True,
    ),
    marks=("<tool_call>",),
    hints=('<tool_call>\n{"name"', '<tool_call>\\n{\\"name\\"', "<tool_call>\\n{'name'"),
)
