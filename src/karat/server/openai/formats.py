"""The form of an answer in OpenAI's terms (response_format) and in vLLM's (structured_outputs)."""

from collections.abc import Mapping
from typing import Any

from karat.errors import RequestError
from karat.request import StructuredOutputs, shown
from karat.server.errors import invalid

_FIELDS = frozenset({"name", "description", "schema", "strict"})


def structure(values: Mapping[str, Any]) -> dict[str, StructuredOutputs]:
    """The field structured_outputs of SamplingParams, if a request gives a form; 400 for a wrong one."""
    wanted = values.get("structured_outputs")
    schema = _schema(values.get("response_format", {"type": "text"}))
    if wanted is None and schema is None:
        return {}
    if wanted is not None and schema is not None:
        raise invalid("structured_outputs", "structured_outputs and response_format; give one of them")
    name = "response_format" if wanted is None else "structured_outputs"
    try:
        return {"structured_outputs": StructuredOutputs(**({"json": schema} if wanted is None else wanted))}
    except RequestError as error:
        raise invalid(name, str(error)) from error


def _schema(form: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON Schema that a response_format asks for; None for text."""
    kind = form.get("type")
    if kind in ("text", "json_object") and len(form) == 1:
        return {"type": "object"} if kind == "json_object" else None
    described = form.get("json_schema")
    if kind != "json_schema" or len(form) != 2 or not isinstance(described, dict):
        raise invalid(
            "response_format",
            f"response_format={shown(dict(form))}: expected type text, json_object, or json_schema with json_schema",
        )
    if unknown := described.keys() - _FIELDS:
        raise invalid("response_format", f"response_format.json_schema has {shown(min(unknown))}; take it out")
    schema = described.get("schema")
    if not isinstance(schema, dict):
        raise invalid("response_format", f"response_format.json_schema.schema={shown(schema)}: expected an object")
    return schema
