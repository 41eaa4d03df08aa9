"""JSON Schemas whose objects have the names that they list, and no others, or without nulls; schemas in a schema."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from karat.errors import RequestError
from karat.request import shown

Schema = dict[str, Any]

OTHERS = ("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas")  # which may speak of properties too
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems", "unevaluatedProperties", "then", "else")
_COMPOSING = ("allOf", "anyOf", "oneOf", "then", "else", "dependentSchemas")
_CONDITIONS = ("not", "if", "contains", "propertyNames")  # schemas that no value of the answer is made of
_NULL_IS_A_VALUE = ("const", "default")
_SAYS_OF_NAMES = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames")


def closed(schema: Mapping[str, Any]) -> Schema:
    """A schema whose objects have the names of their `properties` alone, unless they say something of others.

    Parts of an allOf, and what stands beside one, are closed together: the whole has the names of all of them.
    RequestError where a part is not in the document.
    """
    kept: set[str] = set()
    schema = without_nulls(schema)
    try:
        _find_parts(schema, kept)
        made = _Closing(schema, kept).of(schema, "#")
    except RecursionError as error:
        raise _too_deep() from error
    assert isinstance(made, dict)
    return made


def without_nulls(schema: Mapping[str, Any]) -> Schema:
    """A schema without the keywords that are null, as clients write those that they do not use."""
    try:
        made = _without_nulls(schema)
    except RecursionError as error:
        raise _too_deep() from error
    assert isinstance(made, dict)
    return made


def _without_nulls(schema: object) -> object:
    if not isinstance(schema, Mapping):
        return schema
    said = {name: value for name, value in schema.items() if value is not None or name in _NULL_IS_A_VALUE}
    made = with_inner(said, lambda _, value: _without_nulls(value))
    return made | {name: _without_nulls(made[name]) for name in _CONDITIONS if name in made}


def _too_deep() -> RequestError:
    return RequestError(
        "structured_outputs: json is nested too deeply; expected fewer levels; flatten it", param="structured_outputs"
    )


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas in a schema, each with its place in it."""
    for name in _MAPS:
        if isinstance(schema.get(name), Mapping):
            yield from ((f"/{name}/{key}", value) for key, value in schema[name].items())
    for name in _LISTS:
        if isinstance(schema.get(name), list):
            yield from ((f"/{name}/{index}", value) for index, value in enumerate(schema[name]))
    yield from ((f"/{name}", schema[name]) for name in _SINGLE if name in schema)


def _find_parts(schema: object, kept: set[str], *, is_part: bool = False) -> None:
    """Find the references that stand among parts of a whole."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str) and (is_part or _is_whole(schema)):
            kept.add(schema["$ref"])
        for place, inner in _inner(schema):
            _find_parts(inner, kept, is_part=_is_part(schema, place, is_part))


def _is_part(schema: Mapping[str, Any], place: str, is_part: bool) -> bool:
    """Whether what stands at `place` in a schema, which may be a part itself, is one part of several of an object."""
    return (is_part or _is_whole(schema)) and place.split("/")[1] in _COMPOSING


def _is_whole(schema: Mapping[str, Any]) -> bool:
    """Whether an object of the schema has names of its own, or of several parts."""
    parts, others = schema.get("allOf"), [name for name in (*_COMPOSING, "$ref") if name in schema and name != "allOf"]
    return "properties" in schema or (len(parts) if isinstance(parts, list) else 0) + len(others) > 1


class _Closing:
    """Of one document, `root`. `kept`: the references that stand among parts; what they refer to stays open."""

    def __init__(self, root: Schema, kept: set[str]) -> None:
        self._root, self._kept = root, kept

    def of(self, schema: object, place: str, *, is_part: bool = False) -> object:
        if not isinstance(schema, Mapping):
            return schema
        is_part = is_part or place in self._kept
        result = with_inner(
            schema, lambda name, value: self.of(value, place + name, is_part=_is_part(schema, name, is_part))
        )
        if is_part or not _is_whole(schema):
            return result
        names = self._names(schema, set())
        if names or (names is not None and "properties" in schema):
            result["properties"] = dict.fromkeys(names, True) | result.get("properties", {})
            result["additionalProperties"] = False
        return result

    def _names(self, schema: object, seen: set[str]) -> list[str] | None:
        """The names of properties of a whole and its parts; None where one of them says something of other names."""
        if not isinstance(schema, Mapping):
            return []
        if any(name in schema for name in _SAYS_OF_NAMES):
            return None
        own = schema.get("properties")
        found = list(own) if isinstance(own, Mapping) else []
        parts = [inner for place, inner in _inner(schema) if place.split("/")[1] in _COMPOSING]
        if isinstance(reference := schema.get("$ref"), str) and reference not in seen:
            seen.add(reference)
            parts.append(referred(self._root, reference))
            if parts[-1] is None:
                raise RequestError(
                    f"structured_outputs: json: allOf: strict cannot close it with {shown(reference)}, which is not in "
                    "the schema; put it there",
                    param="structured_outputs",
                )
        for part in parts:
            names = self._names(part, seen)
            if names is None:
                return None
            found += names
        return list(dict.fromkeys(found))


def referred(root: Mapping[str, Any], reference: str) -> object:
    """What a reference means in a document; None where it is not there."""
    start, *steps = reference.split("/")
    found: Any = root if start == "#" else None
    for step in steps:
        step = step.replace("~1", "/").replace("~0", "~")
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def with_inner(schema: Mapping[str, Any], made: Callable[[str, object], object]) -> Schema:
    """A copy in which `made`, of its place and itself, takes the place of each schema in the schema."""
    result = dict(schema)
    for name in _MAPS:
        if isinstance(schema.get(name), Mapping):
            result[name] = {key: made(f"/{name}/{key}", value) for key, value in schema[name].items()}
    for name in _LISTS:
        if isinstance(schema.get(name), list):
            result[name] = [made(f"/{name}/{index}", value) for index, value in enumerate(schema[name])]
    return result | {name: made(f"/{name}", schema[name]) for name in _SINGLE if name in schema}
