"""SmolLM2: all calls are one JSON array in <tool_call> and </tool_call>."""

from karat.text.tools.format import CallShape, ToolFormat
from karat.text.tools.hermes import read_tagged

SMOLLM = ToolFormat(
    "smollm",
    read_tagged,
    CallShape(
        opening="<tool_call>[",
        before='{"name": "',
        between='", "arguments": ',
        after="}",
        separator=", ",
        closing="]</tool_call>",
    ),
    marks=("<tool_call>",),
    hints=("<tool_call>[",),
)
