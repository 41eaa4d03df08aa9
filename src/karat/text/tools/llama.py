"""Llama 3: the answer is JSON objects with name and parameters, parted by semicolons, perhaps after <|python_tag|>."""

from karat.text.tools.format import CallShape, Reading, Sink, ToolFormat, call_object, space

TAG = "<|python_tag|>"


def _read(opening: str, sink: Sink) -> Reading[None]:
    yield from call_object((yield from space()) if opening == TAG else opening, sink)


LLAMA = ToolFormat(
    "llama",
    _read,
    CallShape(opening="", before='{"name": "', between='", "parameters": ', after="}", separator="; "),
    marks=(TAG,),
    at_start="{",
    parted_by=";,",
    hints=('{"name": function name, "parameters":',),
)
