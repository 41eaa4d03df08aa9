"""Granite 3: all calls are one JSON array behind a token. Granite 4 writes Hermes' calls."""

from karat.text.tools.format import CallShape, ToolFormat
from karat.text.tools.hermes import tagged

_OPENING = "<|tool_call|>"
GRANITE = ToolFormat(
    "granite",
    tagged(""),
    CallShape(
        opening=f"{_OPENING}[",
        before='{"name": "',
        between='", "arguments": ',
        after="}",
        separator=", ",
        closing="]",
    ),
    marks=(_OPENING,),
    hints=(f"{_OPENING} followed by a JSON list",),
)
