"""Phi-4-mini: all calls are one JSON array between two tokens."""

from karat.text.tools.format import CallShape, ToolFormat
from karat.text.tools.hermes import tagged

_OPENING, _CLOSING = "<|tool_call|>", "<|/tool_call|>"
PHI = ToolFormat(
    "phi",
    tagged(_CLOSING),
    CallShape(
        opening=f"{_OPENING}[",
        before='{"name": "',
        between='", "arguments": ',
        after="}",
        separator=", ",
        closing=f"]{_CLOSING}",
    ),
    marks=(_OPENING,),
    hints=("<|/tool|>",),
)
