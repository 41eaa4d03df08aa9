"""Schemas of strict tools and forms: objects have the names that they list, and no others."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.errors import RequestError
from karat.text.schema_closing import closed, without_nulls

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
SHUT = {**A, "additionalProperties": False}
ONLY_A: dict[str, Any] = {"properties": {"a": True}, "additionalProperties": False}


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
        ({"allOf": [A, A]}, {"allOf": [A, A], **ONLY_A}),
        ({"allOf": [A, {**A, "additionalProperties": True}]}, {"allOf": [A, {**A, "additionalProperties": True}]}),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, {"allOf": [{"minimum": 1}, {"maximum": 2}]}),
        ({**A, "anyOf": [A, A]}, {**SHUT, "anyOf": [A, A]}),
        (
            {"$defs": {"x": A, "y": A}, "allOf": [{"$ref": "#/$defs/x"}, A], "items": {"$ref": "#/$defs/y"}},
            {"$defs": {"x": A, "y": SHUT}, "allOf": [{"$ref": "#/$defs/x"}, A], "items": {"$ref": "#/$defs/y"}}
            | ONLY_A,
        ),
        ({"enum": [A], "default": A}, {"enum": [A], "default": A}),
        ({**A, "properties": {"properties": A}}, {**SHUT, "properties": {"properties": SHUT}}),
        ({**A, "additionalProperties": None, "minimum": None, "const": None}, {**SHUT, "const": None}),
    ],
)
def test_strict_closes_what_says_nothing_of_other_names(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected


KEYWORDS = st.sampled_from(["minimum", "maxLength", "pattern", "items", "anyOf", "enum", "format", "$ref", "title"])
SCHEMAS = st.recursive(
    st.sampled_from([{"type": "string"}, {"const": None}, {"enum": [None, {"a": None}]}, {"default": None}]),
    lambda inner: st.one_of(
        st.builds(lambda value: {"type": "object", "properties": {"minimum": value}, "not": value}, inner),
        st.builds(lambda value: {"items": value, "anyOf": [value], "propertyNames": value}, inner),
    ),
    max_leaves=6,
)


@given(SCHEMAS, st.data())
def test_null_is_no_keyword(schema: Any, data: st.DataObject) -> None:
    """Nulls at any depth of the schemas, and none of its values."""

    def padded(schema: Any) -> Any:
        made = dict(schema)
        for name in ("properties", "anyOf", "items", "not", "propertyNames"):
            if name == "properties" and name in schema:
                made[name] = {key: padded(value) for key, value in schema[name].items()}
            elif name in schema:
                made[name] = [padded(each) for each in schema[name]] if name == "anyOf" else padded(schema[name])
        return dict.fromkeys(data.draw(st.sets(KEYWORDS))) | made

    assert without_nulls(padded(schema)) == schema


PARTS = st.recursive(
    st.one_of(
        st.builds(
            lambda names, required: {"type": "object", "properties": names, "required": required},
            st.dictionaries(st.sampled_from("abc"), st.sampled_from([{"const": 1}, {"type": "integer"}]), max_size=2),
            st.lists(st.sampled_from("ab"), max_size=1),
        ),
        st.sampled_from([{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}, {"required": ["b"]}]),
    ),
    lambda inner: st.builds(
        lambda parts, own: own | {"allOf": parts},
        st.lists(inner, min_size=1, max_size=2),
        st.sampled_from([{}, {"properties": {"d": True}}]),
    ),
    max_leaves=4,
)


@given(st.lists(PARTS, min_size=2, max_size=3), st.dictionaries(st.sampled_from("abcdez"), st.sampled_from([1, 2])))
def test_the_parts_of_an_allOf_are_one_closed_object(parts: Any, value: Any) -> None:  # noqa: N802
    """As unevaluatedProperties has it, which looks through parts by itself."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    y = {"allOf": [{"$ref": "#/$defs/x"}, {"properties": {"e": {"const": 1}}}]}
    schema = {"$defs": {"x": A | {"properties": {"a": {"const": 1}}}, "y": y}, "allOf": parts}
    names_any = "$ref" in str(parts) or "const" in str(parts) or "integer" in str(parts) or "'d'" in str(parts)
    wanted = {**schema, "unevaluatedProperties": False} if names_any else schema  # what lists no names stays open
    judges = [jsonschema.Draft202012Validator(each) for each in (wanted, closed(schema))]
    assert judges[0].is_valid(value) == judges[1].is_valid(value)


def test_a_part_that_is_elsewhere_is_refused() -> None:
    for reference in ("#/$defs/none", "other.json", "#anchor"):
        with pytest.raises(RequestError, match="json: allOf: strict cannot close it with"):
            closed({"allOf": [A, {"$ref": reference}]})


def test_a_schema_that_is_nested_without_end_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(20_000):
        deep = {"items": deep}
    with pytest.raises(RequestError, match="nested"):
        closed(deep)
