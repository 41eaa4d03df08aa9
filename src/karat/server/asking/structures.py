"""The form that an answer is to have: structured_outputs of SamplingParams, from whichever field gives it."""

from collections.abc import Mapping
from typing import Any

from karat.errors import RequestError
from karat.request import StructuredOutputs
from karat.server.errors import invalid


def structure_field(values: Mapping[str, Any]) -> str:
    """The field of a request that gives the form of the answer, if one does."""
    if "structured_outputs" not in values:
        for name in ("response_format", "output_format"):
            if name in values:
                return name
        for name in ("text", "output_config"):
            if "format" in values.get(name, {}):
                return f"{name}.format"
    return "structured_outputs"


def structured(name: str, schema: Mapping[str, Any] | None, values: Mapping[str, Any]) -> dict[str, StructuredOutputs]:
    """structured_outputs from the `schema` that the field `name` gives, or from the field of its own name.

    400 if both are given, and for a wrong form.
    """
    wanted = values.get("structured_outputs")
    if wanted is None and schema is None:
        return {}
    if wanted is not None and schema is not None:
        raise invalid("structured_outputs", f"structured_outputs and {name}; give one of them")
    try:
        return {"structured_outputs": StructuredOutputs(**({"json": schema} if wanted is None else wanted))}
    except RequestError as error:
        field = name if wanted is None else "structured_outputs"
        raise invalid(field, named(error, field)) from error


def named(error: RequestError, field: str) -> str:
    """What is wrong with a form, by the field that gave it."""
    return str(error).replace("structured_outputs", field, 1)
