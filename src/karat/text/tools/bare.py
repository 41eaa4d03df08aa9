"""Values that a model writes as bare text: what they mean by the schema of their parameter."""

import json
from collections.abc import Mapping
from typing import Any

from karat.text.tools.values import SPACE, MalformedError, ValueScan

ALL = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_DEPTH = 8  # of references and compositions that are followed


def kinds_of(schema: Mapping[str, Any] | None, name: str) -> frozenset[str]:
    """The types that the parameter `name` may have by the schema of a tool's parameters; all where it says nothing."""
    properties = None if schema is None else schema.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    return kinds(found, schema or {})


def kinds(schema: Any, root: Mapping[str, Any], depth: int = _DEPTH) -> frozenset[str]:
    """The types of the values of a schema in the document `root`."""
    if not isinstance(schema, Mapping) or depth == 0:
        return ALL
    found = ALL
    given = schema.get("type")
    listed = [given] if isinstance(given, str) else given
    if isinstance(listed, list) and listed and all(isinstance(each, str) for each in listed):
        found = frozenset(listed) | ({"integer"} if "number" in listed else frozenset())
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        found &= frozenset(map(_kind, values)) | (
            {"integer", "number"} if any(map(_is_number, values)) else frozenset()
        )
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            found &= frozenset().union(*(kinds(each, root, depth - 1) for each in schema[keyword]))
    if isinstance(schema.get("allOf"), list):
        for each in schema["allOf"]:
            found &= kinds(each, root, depth - 1)
    if isinstance(schema.get("$ref"), str):
        found &= kinds(_resolved(schema["$ref"], root), root, depth - 1)
    return found or ALL


def as_json(text: str, allowed: frozenset[str]) -> str:
    """The value as JSON: of one of the types `allowed`, if the text is that in JSON or Python, else the text itself."""
    bare = text.strip(SPACE)
    value: list[str] = []
    scan = ValueScan(value.append, python=True)
    try:
        is_value = (
            bool(bare) and all(scan.push(char) for char in bare) and (scan.done or not scan.push(" ")) and scan.done
        )
    except MalformedError:
        is_value = False
    if is_value:
        written = "".join(value)
        kind = _kind(json.loads(written))
        is_quoted = kind == "string" and allowed != ALL and not allowed - {"string", "null"}
        if not is_quoted and (kind in allowed or (kind == "number" and "integer" in allowed)):
            return written
    return json.dumps(text, ensure_ascii=False)


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")
