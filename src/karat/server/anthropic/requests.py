"""From requests of Anthropic's protocol to the inner form, with all checks. Nothing here computes or waits."""

from collections.abc import Mapping
from typing import Any

from karat.engine.requests.passed import Passed, stated
from karat.request import StructuredOutputs, shown
from karat.server.anthropic.messages import Contents
from karat.server.asking.asked import AnswerForm, ChatRequest
from karat.server.asking.conversation import as_sent
from karat.server.asking.sampling import require_length, sampling_of
from karat.server.asking.structures import structure_field, structured
from karat.server.asking.terms import read_terms
from karat.server.asking.tools import MODES, Function, Tools, chosen, function_of, other_name, unknown_choice
from karat.server.asking.variables import Effort, read_variables, switched, thought
from karat.server.bodies import Body, judge
from karat.server.errors import invalid
from karat.server.fields import MESSAGES, Field, Names, Text, keyed

_CONFIG: Mapping[str, Field] = keyed(
    Field("format", (), "honoured", "json_schema with a schema.", Names),
    Field("effort", (), "honoured", "As reasoning_effort of a chat.", Text),
)


@as_sent()
def read_message(body: Body) -> ChatRequest:
    """The request of a body for /v1/messages or its count_tokens. 400 for what is wrong or no text."""
    values, passed = body.values, Passed()
    contents = Contents(passed)
    messages = contents.messages(values["messages"])
    continues = messages[-1]["role"] == "assistant"
    if system := contents.system(values["system"]) if "system" in values else "":
        messages.insert(0, {"role": "system", "content": system})
    sampling = sampling_of(values, MESSAGES)
    require_length(body, "max_tokens")
    form, level, unused = _structure(values)
    sampling |= form
    if "stop_sequences" in values:
        sampling["stop"] = values["stop_sequences"]
    stream = values.get("stream", False)
    efforts, unheeded = thought(values.get("thinking"))
    tools = _tools(values, passed)
    names = (*body.without_effect, *unheeded, *unused, *passed.names)
    has_marks = contents.has_marks or any(tool.get("cache_control") for tool in values.get("tools", ()))
    if has_marks and "cache_control" not in names:
        names += ("cache_control",)
    return ChatRequest(
        messages,
        read_variables(values, continues=continues),
        sampling,
        AnswerForm(  # progress: the first event has the cached tokens
            values.get("model"),
            stream,
            progress=stream,
            structure_field=structure_field(values),
            prompt_field="messages",
            length_field=body.sent("max_tokens"),
            stop_field=body.sent("stop_sequences"),
        ),
        read_terms(values),
        tools,
        (*efforts, *level, *switched(values)),
        names,
        continues,
    )


def _tools(values: Mapping[str, Any], passed: Passed) -> Tools:
    """The tools, and which may or must be called. A tool without a type, or of type custom, is a function."""
    functions: list[Function] = []
    others: list[str] = []
    for number, tool in enumerate(values.get("tools", ())):
        if tool.get("type") not in (None, "custom"):
            others.append(other_name(tool, number))
        else:
            known = ("type", "cache_control")
            functions.append(function_of(tool, f"tools[{number}]", passed, schema="input_schema", harmless=known))
    given = values.get("tool_choice", "auto")
    choice: Any = {"type": given} if isinstance(given, str) else stated(given)
    kind, name = choice.get("type"), choice.get("name")
    single = choice.get("disable_parallel_tool_use", False)
    allowed = {"type", "disable_parallel_tool_use"} | ({"name"} if kind == "tool" else set())
    is_named = kind == "tool" and isinstance(name, str)
    if (
        not (is_named or (isinstance(kind, str) and kind in MODES))
        or choice.keys() - allowed
        or not isinstance(single, bool)
    ):
        raise unknown_choice(given, "type auto, any, tool with a name, or none, perhaps with disable_parallel_tool_use")
    return chosen(functions, others, (name,) if is_named else MODES[kind], parallel=not single)


def _structure(
    values: Mapping[str, Any],
) -> tuple[dict[str, StructuredOutputs | None], tuple[Effort, ...], tuple[str, ...]]:
    """The field structured_outputs of SamplingParams, if a request gives a form; the effort; fields without effect.

    400 for a wrong form, and for two.
    """
    config = judge(values.get("output_config", {}), _CONFIG, "output_config.")
    form, older = config.values.get("format"), values.get("output_format")
    if form is not None and older is not None:
        raise invalid("output_format", "output_format and output_config.format; give the latter alone")
    name = "output_format" if form is None else "output_config.format"
    given = older if form is None else form
    schema = None if given is None else _schema(given, name)
    efforts: tuple[Effort, ...] = ()
    if "effort" in config.values:
        efforts = (Effort("output_config.effort", config.values["effort"], switches=False),)
    names = tuple(f"output_config.{field}" for field in config.without_effect)
    return structured(name, schema, values), efforts, names


def _schema(form: Mapping[str, Any], name: str) -> dict[str, Any]:
    schema = form.get("schema")
    if form.get("type") != "json_schema" or form.keys() - {"type", "schema"} or not isinstance(schema, dict):
        raise invalid(name, f"{name}={shown(form)}: expected type json_schema with a schema")
    return schema
