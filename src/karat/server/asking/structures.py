"""The form that an answer is to have: structured_outputs of SamplingParams, from whichever field gives it."""

from collections.abc import Mapping
from typing import Any

from karat.engine.requests.passed import stated
from karat.errors import RequestError
from karat.request import StructuredOutputs
from karat.server.errors import invalid

# Fields of llama.cpp and of earlier vLLM, and what they are of structured_outputs.
_OTHERS: Mapping[str, str] = {
    "json_schema": "json",
    "grammar": "grammar",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}


def structure_field(values: Mapping[str, Any]) -> str:
    """The field of a request that gives the form of the answer, if one does."""
    for name in _OTHERS:
        if values.get(name) not in (None, ""):
            return name
    if not stated(values.get("structured_outputs", {})):
        for name in ("response_format", "output_format"):
            if name in values:
                return name
        for name in ("text", "output_config"):
            if "format" in values.get(name, {}):
                return f"{name}.format"
    return "structured_outputs"


def structured(
    name: str, schema: Mapping[str, Any] | None, values: Mapping[str, Any]
) -> dict[str, StructuredOutputs | None]:
    """structured_outputs from the `schema` that the field `name` gives, or from the field of its own name.

    400 if both are given, and for a wrong form.
    """
    given: dict[str, Any] = {name: {"json": schema}} if schema is not None else {}
    given |= {field: {kind: values[field]} for field, kind in _OTHERS.items() if values.get(field) not in (None, "")}
    if wanted := stated(values.get("structured_outputs", {})):
        given["structured_outputs"] = wanted
    if not given:
        return {"structured_outputs": None} if "structured_outputs" in values else {}
    if len(given) > 1:
        raise invalid(next(reversed(given)), f"{' and '.join(reversed(given))}; give one of them")
    ((field, form),) = given.items()
    try:
        return {"structured_outputs": StructuredOutputs(**stated(form))}
    except RequestError as error:
        raise invalid(field, named(error, field)) from error


def named(error: RequestError, field: str) -> str:
    """What is wrong with a form, by the field that gave it."""
    return str(error).replace("structured_outputs", field, 1)
