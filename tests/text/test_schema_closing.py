"""Schemas of strict tools and forms: objects have the names that they list, and no others."""

from typing import Any

import pytest

from karat.errors import RequestError
from karat.text.schema_closing import closed

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
SHUT = {**A, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (A, SHUT),
        ({**A, "additionalProperties": True}, {**A, "additionalProperties": True}),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "array", "items": A}, {"type": "array", "items": SHUT}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
        ({"$defs": {"x": A}, "$ref": "#/$defs/x"}, {"$defs": {"x": SHUT}, "$ref": "#/$defs/x"}),
        ({"allOf": [A]}, {"allOf": [SHUT]}),
        ({"allOf": [A, A]}, {"allOf": [A, A]}),
        ({**A, "anyOf": [A, A]}, {**A, "anyOf": [A, A]}),
        (
            {"$defs": {"x": A, "y": A}, "allOf": [{"$ref": "#/$defs/x"}, A], "items": {"$ref": "#/$defs/y"}},
            {"$defs": {"x": A, "y": SHUT}, "allOf": [{"$ref": "#/$defs/x"}, A], "items": {"$ref": "#/$defs/y"}},
        ),
        ({"enum": [A], "default": A}, {"enum": [A], "default": A}),
        ({**A, "properties": {"properties": A}}, {**SHUT, "properties": {"properties": SHUT}}),
    ],
)
def test_strict_closes_what_says_nothing_of_other_names(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected


def test_a_schema_that_is_nested_without_end_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(20_000):
        deep = {"items": deep}
    with pytest.raises(RequestError, match="nested"):
        closed(deep)
