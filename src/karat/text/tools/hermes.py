"""Hermes and Qwen: each call is a JSON object in <tool_call> and </tool_call>."""

from karat.text.tools.format import CallShape, Reading, Sink, ToolFormat, call_objects, literal, space


def read_tagged(_opening: str, sink: Sink) -> Reading[None]:
    """One call, or an array of them, and the closing tag, which the end of the answer may stand for."""
    yield from call_objects((yield from space()), sink)
    if char := (yield from space()):
        yield from literal("</tool_call>", char)


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
