"""Mistral: after [TOOL_CALLS] a JSON array of calls, or, in newer models, a name, [ARGS] and a JSON object."""

from karat.text.tools.format import (
    CallShape,
    Reading,
    Sink,
    ToolFormat,
    call_objects,
    json_object,
    literal,
    name,
    space,
)

MARK = "[TOOL_CALLS]"


def _read(_opening: str, sink: Sink) -> Reading[None]:
    char = yield from space()
    if char in ("[", "{"):
        yield from call_objects(char, sink)
        return
    called, char = yield from name(char)
    sink.begin(called)
    while char == "[":
        char = yield
        if char == "C":
            yield from literal("CALL_ID]", char)
            _, char = yield from name((yield))
        else:
            yield from literal("ARGS]", char)
            char = yield from space()
            break
    yield from json_object(char, sink)
    sink.end()


MISTRAL = ToolFormat(
    "mistral",
    _read,
    CallShape(
        opening="[TOOL_CALLS][",
        before='{"name": "',
        between='", "arguments": ',
        after="}",
        separator=", ",
        closing="]",
    ),
    marks=(MARK,),
    short_ids=True,
)
MISTRAL_ARGS = ToolFormat(
    "mistral-args",
    _read,
    CallShape(opening="[TOOL_CALLS]", before="", between="[ARGS]", after="", separator="", each=True),
    marks=(MARK,),
    hints=("[ARGS]",),
    short_ids=True,
)
