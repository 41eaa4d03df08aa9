"""The form of an answer in Anthropic's terms: output_config.format, and output_format, its older name."""

from collections.abc import Mapping
from typing import Any

from karat.request import StructuredOutputs, shown
from karat.server.asking.structures import chosen
from karat.server.asking.variables import Effort
from karat.server.bodies import judge
from karat.server.errors import invalid
from karat.server.fields import Field, Names, Text

_CONFIG: Mapping[str, Field] = {
    field.name: field
    for field in (
        Field("format", (), "honoured", "json_schema with a schema.", Names),
        Field("effort", (), "honoured", "As reasoning_effort of a chat.", Text),
    )
}


def structure(
    values: Mapping[str, Any],
) -> tuple[dict[str, StructuredOutputs], tuple[Effort, ...], tuple[str, ...]]:
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
    return chosen(name, schema, values), efforts, tuple(f"output_config.{field}" for field in config.without_effect)


def _schema(form: Mapping[str, Any], name: str) -> dict[str, Any]:
    schema = form.get("schema")
    if form.get("type") != "json_schema" or form.keys() - {"type", "schema"} or not isinstance(schema, dict):
        raise invalid(name, f"{name}={shown(form)}: expected type json_schema with a schema")
    return schema
