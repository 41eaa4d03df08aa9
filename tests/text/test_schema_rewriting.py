"""Schemas rewritten for the compiler: what is drawn under them is an answer of the schema that was given."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.errors import RequestError
from karat.request import StructuredOutputs
from karat.text.grammar import GrammarCompiler
from karat.text.schema_closing import closed
from karat.text.schema_rewriting import rewritten
from tests.text.tools.models import byte_tokenizer

TOKENIZER = byte_tokenizer(special=["<|end|>"])
END = 256
COMPILER = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size)


def takes(schema: Any, value: Any) -> bool:
    """Whether a value, written with its keys in the schema's order, is an answer."""
    state = COMPILER.compile(StructuredOutputs(json=schema)).begin([END])
    for token_id in TOKENIZER.encode(json.dumps(value), add_special_tokens=False):
        if not state.fitting([])[token_id]:
            return False
        state.push(token_id)
    return state.may_end


def drawn(schema: Any, seed: int, most: int = 300) -> str | None:
    """A random answer, in which what closes is likelier; None for one that was cut."""
    state, rng = COMPILER.compile(StructuredOutputs(json=schema)).begin([END]), random.Random(seed)
    ids: list[int] = []
    while len(ids) < most:
        fits = state.fitting([END]).nonzero()[0].tolist()
        assert fits, TOKENIZER.decode(ids)
        likely = [i for i in fits if i == END or chr(i % 256) in '"}],:' or rng.random() < 0.2]
        token_id = rng.choice(likely or fits)
        if token_id == END:
            return TOKENIZER.decode(ids)
        state.push(token_id)
        ids.append(token_id)
    return None


def _alone(keywords: dict[str, st.SearchStrategy[Any]]) -> list[st.SearchStrategy[dict[str, Any]]]:
    """Schemas of one keyword, which are those that can be kept to."""
    return [st.fixed_dictionaries({name: value}) for name, value in keywords.items()]


OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": False}
KINDS: dict[str, Any] = {
    **OBJECT,
    "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
}
IF_A = {"properties": {"kind": {"const": "a"}}, "required": ["kind"]}
KEPT: dict[str, tuple[Any, list[Any], list[Any]]] = {  # a schema, answers of it, and others
    "password": ({"type": "string", "format": "password"}, ["x"], [1]),
    "a known format": ({"type": "string", "format": "date"}, ["2024-02-29"], [5]),
    "a property named format": (
        {**OBJECT, "properties": {"format": {"const": "x"}}},
        [{"format": "x"}],
        [{"format": 1}],
    ),
    "int64": (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        [0, 2**63 - 1, 1024 - 2**63],
        [2**63, -(2**63) - 1],
    ),
    "uint64": ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, [0, 2**63 - 1], [-1, 2**64]),
    "large alone": ({"type": "integer", "minimum": 2**60}, [2**60, 2**62], [2**60 - 2, 1]),
    "small alone": ({"type": "integer", "maximum": -(2**60)}, [-(2**60), -(2**62)], [2 - 2**60, 0]),
    "numbers up to far": ({"type": "number", "maximum": 1e30}, [1.5, 2**62], [None]),
    "numbers from far": ({"type": "number", "exclusiveMinimum": -1e300}, [-1.5, 7], [None]),
    "numbers beyond far": ({"type": "number", "minimum": 1e18}, [2 * 10**18], [1, 1.5]),
    "a bound of no float": (
        {"maximum": 2**53 + 1, "minimum": 2**52, "type": "integer"},
        [2**53],
        [2**53 + 2, 2**52 - 1],
    ),
    "a set of few": (
        {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
        [[], ["a"], ["b", "a"], ["a", "b"]],
        [["a", "a"], ["c"], ["a", "b", "a"]],
    ),
    "a set of more": (
        {"type": "array", "items": {"enum": list("abcdef")}, "uniqueItems": True, "minItems": 1, "maxItems": 2},
        [["a"], ["a", "f"]],
        [[], ["a", "a"], ["a", "b", "c"]],
    ),
    "a set of values that are there twice": (
        {"type": "array", "items": {"enum": ["a", 1, "a", 1.0]}, "uniqueItems": True},
        [[], [1, "a"]],
        [["a", "a"], [1, 1]],
    ),
    "a set by reference": (
        {"type": "array", "items": {"$ref": "#/$defs/b"}, "uniqueItems": True, "$defs": {"b": {"type": "boolean"}}},
        [[True, False]],
        [[True, True]],
    ),
    "no set": ({"type": "array", "items": {"type": "integer"}, "uniqueItems": False}, [[1, 1]], ["x"]),
    "one item": ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 1}, [[1]], [[1, 2]]),
    "names of an enum": (
        {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": {"type": "integer"}},
        [{}, {"x": 1}, {"x": 1, "y": 2}],
        [{"z": 1}, {"x": "a"}],
    ),
    "one name": ({"type": "object", "propertyNames": {"const": "x"}}, [{"x": "any"}, {}], [{"y": 1}]),
    "names of a pattern": (
        {"type": "object", "propertyNames": {"pattern": "^k"}, "additionalProperties": {"type": "integer"}},
        [{"ka": 1, "kb": 2}],
        [{"a": 1}, {"ka": "x"}],
    ),
    "short names": ({"type": "object", "propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
    "no names": ({"type": "object", "propertyNames": False}, [{}], [{"a": True}]),
    "no names by type": ({"type": "object", "propertyNames": {"type": "integer"}}, [{}], [{"a": True}]),
    "no names beside names": (
        {"type": "object", "properties": {"a": {"type": "boolean"}}, "propertyNames": False},
        [{}],
        [{"a": True}],
    ),
    "any names": ({"type": "object", "propertyNames": {"type": "string"}}, [{"ab": 1}], []),
    "a pattern that is a property": (
        {**OBJECT, "properties": {"s": {"type": "integer"}}, "patternProperties": {"^s$": {"minimum": 5}}},
        [{"s": 5}, {}],
        [{"s": 4}, {"t": 5}],
    ),
    "a pattern that is required": (
        {**OBJECT, "patternProperties": {"^s$": {"type": "integer"}}, "required": ["s"]},
        [{"s": 5}],
        [{}, {"s": "x"}],
    ),
    "not of an enum": ({"enum": ["a", "b", 1], "not": {"enum": ["a", 1]}}, ["b"], ["a", 1]),
    "not of a type": ({"not": {"type": ["object", "array", "string", "boolean"]}}, [1, None], ["a", [], True]),
    "not of required": ({**KINDS, "not": {"required": ["n"]}}, [{"kind": "a"}], [{"kind": "a", "n": 1}]),
    "not of nothing": ({"type": "string", "not": False}, ["a"], []),
    "dependentRequired": (
        {**KINDS, "dependentRequired": {"kind": ["n"]}},
        [{"n": 1}, {"kind": "a", "n": 1}, {}],
        [{"kind": "a"}],
    ),
    "if alone": ({"type": "string", "if": {"minLength": 5}}, ["a"], [1]),
    "if": (
        {**KINDS, "required": ["kind"], "if": IF_A, "then": {"required": ["n"]}, "else": {"properties": {"n": False}}},
        [{"kind": "a", "n": 1}, {"kind": "b"}],
        [{"kind": "a"}, {"kind": "b", "n": 1}],
    ),
    "if of what may be missing": (
        {**KINDS, "allOf": [{"if": IF_A, "then": {"required": ["n"]}}]},
        [{"kind": "a", "n": 1}, {"kind": "b"}, {}, {"n": 1}],
        [{"kind": "a"}],
    ),
    "if of true": ({"type": "string", "if": True, "then": {"maxLength": 1}, "else": False}, ["a"], ["ab"]),
    "unevaluatedProperties": (
        {"type": "object", "properties": {"a": True}, "unevaluatedProperties": False},
        [{}],
        [{"b": 1}],
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_keywords_that_the_compiler_does_not_know(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema, fitting, others = KEPT[name]
    judge = jsonschema.Draft202012Validator(schema)
    for value in fitting:
        assert judge.is_valid(value) and takes(schema, value), value
    for value in others:
        assert not judge.is_valid(value) and not takes(schema, value), value


def test_strict_parts_of_an_allOf_are_one_closed_object() -> None:  # noqa: N802
    a, b = ({"type": "object", "properties": {name: {"type": "boolean"}}, "required": [name]} for name in "ab")
    by_reference = {"$defs": {"a": a}, "allOf": [{"$ref": "#/$defs/a"}, b]}
    for schema in ({"allOf": [a, b]}, {**a, "allOf": [b]}, {"allOf": [{"allOf": [a, b]}, b]}, by_reference):
        for value in ({"a": True, "b": False}, {"a": True}, {"a": True, "b": False, "c": 1}):
            assert takes(closed(schema), value) == (value.keys() == {"a", "b"}), (schema, value)


@given(st.sampled_from(sorted(KEPT)), st.sampled_from(sorted(KEPT)), st.integers(0))
def test_whatever_is_drawn_keeps_to_the_schema_that_was_given(one: str, other: str, seed: int) -> None:
    """And no answer comes to where no token fits."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    defs = {"$defs": {"b": {"type": "boolean"}}}
    schema = {**OBJECT, **defs, "properties": {"x": KEPT[one][0], "y": KEPT[other][0]}, "required": ["x"]}
    if (text := drawn(schema, seed)) is not None:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@given(
    st.sets(st.sampled_from("ab")),
    st.sets(st.sampled_from("abc")),
    st.sampled_from(["^[ab]$", "^a$", "^(a|b)$", "b", "^c", "^[a-z]$"]),
    st.booleans(),
    st.integers(0),
)
def test_names_of_patterns_come_to_no_dead_end(
    own: Any, required: Any, pattern: str, any_more: bool, seed: int
) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = {
        "type": "object",
        "properties": {name: {"enum": [1, 2]} for name in sorted(own)},
        "patternProperties": {pattern: {"enum": [2, 3]}},
        "required": sorted(required),
        "additionalProperties": any_more,
    }
    try:
        text = drawn(schema, seed)
    except RequestError:
        assert required - own, "nothing may have the name"
        return
    if text is not None:
        schema["patternProperties"] = {pattern.replace("$", r"\Z"): {"enum": [2, 3]}}  # no line end, as ECMA has it
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


TEXTS = st.sampled_from(["a", "b", "ab", "abc", "1", ""])
KEYWORDS_OF_NAMES: dict[str, st.SearchStrategy[Any]] = {
    "type": st.one_of(
        st.sampled_from(["string", "integer", "null", "boolean", "object"]),
        st.lists(st.sampled_from(["string", "integer", "null"]), min_size=1, unique=True),
    ),
    "enum": st.lists(st.one_of(TEXTS, st.sampled_from([1, None, True])), min_size=1, unique_by=repr),
    "const": st.one_of(TEXTS, st.none(), st.integers(0, 1)),
    "pattern": st.sampled_from(["^a", "b", "^[a-c]*$", "^$"]),
    "minLength": st.integers(0, 3),
    "maxLength": st.integers(0, 3),
    "minimum": st.integers(0, 3),
    "not": st.sampled_from([{"const": "a"}, {}, {"type": "string"}, False]),
    "title": st.just("x"),
    "anyOf": st.just([{"const": "a"}, {"pattern": "^b"}]),
    "$ref": st.sampled_from(["#/$defs/never", "#/$defs/short", "#/$defs/none", "#", "#short", "other.json#/$defs"]),
}


@given(
    st.one_of(st.booleans(), st.fixed_dictionaries({}, optional=KEYWORDS_OF_NAMES), *_alone(KEYWORDS_OF_NAMES)),
    st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(TEXTS, st.just({"type": "boolean"}), max_size=2),
            "patternProperties": st.just({"^b": {"type": "null"}}),
            "additionalProperties": st.sampled_from([True, False, {"type": "null"}]),
            "required": st.lists(TEXTS, max_size=1),
        },
    ),
    st.integers(0),
)
def test_names_keep_to_propertyNames_or_it_is_refused(names: Any, beside: Any, seed: int) -> None:  # noqa: N802
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    defs = {"$defs": {"never": False, "short": {"maxLength": 1}}}
    schema = {"type": "object", "propertyNames": names, **beside, **defs}
    try:
        texts = [drawn(schema, seed + number, 60) for number in range(4)]
    except RequestError as error:
        told = str(error)
        assert "propertyNames" in told or "patternProperties" in told or "required" in beside
        return
    judge = jsonschema.Draft202012Validator(schema)
    for text in texts:
        assert text is None or judge.is_valid(json.loads(text)), text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"type": "array", "items": {"enum": list("abcdefgh")}, "uniqueItems": True},
        {"type": "array", "items": {"enum": ["a"]}, "minItems": 2, "uniqueItems": True},
        {"type": "string", "not": {"pattern": "a"}},
        {"enum": ["a"], "not": {"const": "a"}},
        {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "if": {"properties": {"a": {"const": "x"}}},
            "then": {},
        },
        {"properties": {"a": {"enum": [1]}}, "if": {"properties": {"a": {"const": 1}}}, "then": {}},
        {"dependentRequired": {"a": ["b"]}},
        {"type": "object", "propertyNames": {"format": "date", "pattern": "a", "maxLength": 3}},
        {"type": "object", "propertyNames": {"$ref": "#/nowhere"}},
        {"type": "object", "propertyNames": {"type": "zork"}},
        {"type": "object", "propertyNames": 5},
    ],
)
def test_what_no_grammar_keeps_to_is_refused_by_name(schema: Any) -> None:
    names = [name for name in ("uniqueItems", "not", "if", "dependentRequired", "propertyNames") if name in schema]
    with pytest.raises(RequestError, match=f"json: {names[0]}"):
        rewritten(schema)


def test_bounds_without_a_number_between_them_are_refused_as_they_were_given() -> None:
    for least, most in ((2**53 + 1, 2**53 + 1), (2**60 + 1, 2**60 + 100), (-(2**53) - 1, -(2**53) - 1)):
        with pytest.raises(RequestError, match=f"json: minimum={least} and maximum={most}: the compiler has no number"):
            rewritten({"type": "integer", "minimum": least, "maximum": most})
    rewritten({"type": "integer", "minimum": 2**60, "maximum": 2**60})


def test_the_place_of_what_is_refused_is_said() -> None:
    tags = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    for schema, place in (
        ({"properties": {"tags": tags}}, "/properties/tags"),
        ({"$defs": {"a": {"anyOf": [{"type": "null"}, tags]}}}, "/$defs/a/anyOf/1"),
        ({"properties": {"a": {"items": tags}}}, "/properties/a/items"),
    ):
        with pytest.raises(RequestError) as refused:
            rewritten(schema)
        assert str(refused.value).startswith(f"structured_outputs: json: uniqueItems of {place}: no grammar can keep")
