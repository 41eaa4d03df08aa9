"""The form of an answer in OpenAI's terms (response_format, text.format) and in vLLM's (structured_outputs)."""

from collections.abc import Mapping
from typing import Any

from karat.checkpoint.wording import kind_of
from karat.engine.requests.passed import stated
from karat.errors import RequestError
from karat.request import StructuredOutputs, shown
from karat.server.asking.structures import named, structured
from karat.server.bodies import judge
from karat.server.errors import invalid
from karat.server.fields import Field, Names, Text, keyed
from karat.server.openai.response_schema import JsonObjectFormat, JsonSchemaFormat, TextConfig, TextFormat
from karat.text.schema_closing import closed

_FIELDS = frozenset({"name", "description", "schema", "strict"})
_ANY_OBJECT = {"type": "object"}
_TEXT: Mapping[str, Field] = keyed(
    Field("format", (), "honoured", "text, json_object or json_schema.", Names),
    Field("verbosity", (), "without effect", "Say in a message how long it is to be.", Text),
)


def structure(values: Mapping[str, Any]) -> dict[str, StructuredOutputs | None]:
    """The field structured_outputs of SamplingParams, if a request gives a form; 400 for a wrong one."""
    return structured("response_format", _schema(values.get("response_format", {"type": "text"})), values)


def text_structure(
    values: Mapping[str, Any],
) -> tuple[dict[str, StructuredOutputs | None], TextConfig, tuple[str, ...]]:
    """The same for the field `text` of responses; and that field for the answer, and its fields without effect."""
    body = judge(values.get("text", {}), _TEXT, "text.")
    form = stated(body.values.get("format", {"type": "text"}))
    kind = form.pop("type", None)
    schema: dict[str, Any] | None
    if kind in ("text", "json_object") and not form:
        config = TextConfig(TextFormat() if kind == "text" else JsonObjectFormat())
        schema = None if kind == "text" else _ANY_OBJECT
    elif kind == "json_object" and form.keys() == {"schema"} and isinstance(form["schema"], dict):
        schema, config = form["schema"], TextConfig(JsonObjectFormat())  # as in a chat
    elif kind == "json_schema":
        schema = _described(form, "text.format")
        if not isinstance(form.get("name"), str):
            raise invalid("text.format.name", f"text.format.name={shown(form.get('name'))}: expected a name")
        config = TextConfig(
            JsonSchemaFormat(form["name"], form["schema"], form.get("strict") or False, form.get("description"))
        )
    else:
        expected = "expected type text, json_object, or json_schema with name and schema"
        raise invalid("text.format", f"text.format={shown(body.values['format'])}: {expected}")
    return structured("text.format", schema, values), config, tuple(f"text.{name}" for name in body.without_effect)


def _schema(sent: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON Schema that a response_format asks for; None for text."""
    form = stated(sent)
    kind = form.get("type")
    if kind in ("text", "json_object") and len(form) == 1:
        return _ANY_OBJECT if kind == "json_object" else None
    if kind == "json_object" and len(form) == 2 and isinstance(schema := form.get("schema"), dict):
        return schema  # as llama.cpp has it
    described = form.get("json_schema")
    if kind != "json_schema" or len(form) != 2 or not isinstance(described, dict):
        raise invalid(
            "response_format",
            f"response_format={shown(dict(form))}: expected type text, json_object, perhaps with schema, or "
            "json_schema with json_schema",
        )
    return _described(described, "response_format.json_schema")


def _described(described: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The schema of a form with its name. Every schema is kept to; strict closes objects that name their properties."""
    described, field = stated(described), where.partition(".json_schema")[0]
    if unknown := described.keys() - _FIELDS:
        raise invalid(field, f"{where} has {shown(min(unknown))}; take it out", "unknown_field")
    schema = described.get("schema")
    if not isinstance(schema, dict):
        raise invalid(field, f"{where}.schema={shown(schema)}: expected an object")
    for name, kind in (("name", str), ("description", str), ("strict", bool)):
        if not isinstance(described.get(name), kind | None):
            raise invalid(field, f"{where}.{name}={shown(described[name])}: expected {kind_of(kind)}")
    try:
        return closed(schema) if described.get("strict") else schema
    except RequestError as error:
        raise invalid(field, named(error, field)) from error
