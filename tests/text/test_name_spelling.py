"""The name of a property can be written in one way only, so that no other is taken for one of those that are listed."""

import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from karat.errors import RequestError
from karat.request import StructuredOutputs
from karat.text.grammar import GrammarCompiler
from karat.text.name_spelling import ALL, escapes
from tests.text.tools.models import byte_tokenizer

TOKENIZER = byte_tokenizer(special=["<|end|>"])
END = 256
COMPILER = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size)
NAMES = st.text(st.sampled_from('ab"\\/\n\té€😀\x01\x7f '), max_size=3)


def _takes(schema: Any, text: str) -> bool:
    state = COMPILER.compile(StructuredOutputs(json=schema)).begin([END])
    for token_id in TOKENIZER.encode(text, add_special_tokens=False):
        if not state.fitting([])[token_id]:
            return False
        state.push(token_id)
    return state.may_end


def _spelled(name: str, rng: random.Random) -> str:
    """A name as JSON has it, with an escape for any of its characters."""
    written = ""
    for char in name:
        units = char.encode("utf-16-be").hex()
        escaped = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        if rng.random() < 0.5:
            escaped = escaped.upper().replace("U", "u")
        written += rng.choice([json.dumps(char, ensure_ascii=False)[1:-1], escaped, "\\/" if char == "/" else escaped])
    return f'"{written}"'


@given(NAMES, NAMES, st.sampled_from([True, {}, {"type": "boolean"}, None]), st.booleans(), st.integers(0))
@example("b", "a", True, True, 0)
@example("b", "a", None, False, 0)
@example("\x01\x7f", "", {"type": "boolean"}, True, 0)
def test_a_name_by_any_spelling_is_that_of_its_property(
    name: str, other: str, more: Any, is_pattern: bool, seed: int
) -> None:
    """Also where it is a pattern's. What is taken keeps to the schema, as jsonschema has it."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    pattern = "^" + "".join(f"\\x{{{ord(char):x}}}" for char in name) + "$"
    schema: dict[str, Any] = {"type": "object", "properties": {name: {"const": 1}}}
    judged = schema
    if is_pattern:
        judged = {"type": "object", "properties": {}, "patternProperties": {f"^{_plain(name)}\\Z": {"const": 1}}}
        schema = {"type": "object", "patternProperties": {pattern: {"const": 1}}}
    if more is not None:
        schema, judged = {**schema, "additionalProperties": more}, {**judged, "additionalProperties": more}
    judge = jsonschema.Draft202012Validator(judged)
    if is_pattern and {"\x01", "\x7f"} & {*name}:
        with pytest.raises(RequestError, match=r"patternProperties has .*control character"):
            _takes(schema, "{}")
        return
    rng = random.Random(seed)
    for each in (name, other):
        for value in ("1", "true"):
            text = f"{{{_spelled(each, rng)}:{value}}}"
            if _takes(schema, text):
                judge.validate(json.loads(text))


def _plain(name: str) -> str:
    """A regular expression of Python's for a name."""
    return "".join(f"\\u{ord(char):04x}" if ord(char) < 65536 else char for char in name)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"b": {"const": 1}}},
        {"allOf": [{"type": "object", "properties": {"b": {"const": 1}}}, {"required": ["b"]}]},
        {"type": "object", "patternProperties": {"b": {"const": 1}}},
        {"type": "object", "anyOf": [{"properties": {"b": {"const": 1}}}]},
        {"$ref": "#/parts/b", "parts": {"b": {"type": "object", "properties": {"b": {"const": 1}}}}},
    ],
)
def test_no_escape_stands_for_a_letter(schema: Any) -> None:
    assert _takes(schema, '{"b":1}')
    for value in ("1", "2"):
        assert not _takes(schema, rf'{{"b":1,"\u0062":{value}}}')
        assert not _takes(schema, rf'{{"\u0062":{value}}}')


def test_control_characters_in_values_stay_where_no_name_is_open() -> None:
    closed = {"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": False}
    for schema in (closed, {"properties": {"properties": closed}, "additionalProperties": False}, {"type": "string"}):
        assert escapes(schema) == ALL
    assert _takes(closed, r'{"b":"\u001b[0m\n"}')
    assert not _takes({**closed, "additionalProperties": True}, r'{"b":"\u001b[0m\n"}')
    assert _takes({**closed, "additionalProperties": True}, r'{"b":"\n\t\"\\"}')


def test_a_listed_text_that_cannot_be_written_is_refused() -> None:
    for value in ({"enum": ["a\x1b"]}, {"const": {"x": ["\x7f"]}}):
        schema = {"type": "object", "properties": {"b": value}}
        with pytest.raises(RequestError, match=f"{next(iter(value))} has .*additionalProperties to false"):
            COMPILER.compile(StructuredOutputs(json=schema))
        COMPILER.compile(StructuredOutputs(json={**schema, "additionalProperties": False}))


@pytest.mark.parametrize(
    "asked", [r"\x{1}", r"\x01", r"\u0001", "\x01", r"[\x01]", r"[\x{7f}]", r"\a", r"\v", r"\x01?"]
)
def test_a_pattern_that_asks_for_what_cannot_be_written_is_refused(asked: str) -> None:
    """The compiler drops such a character, and would take "ab"."""
    for schema in (
        {"type": "object", "patternProperties": {f"^a{asked}b$": {"const": 1}}},
        {"type": "object", "properties": {"b": {"type": "string", "pattern": f"^a{asked}b$"}}},
    ):
        with pytest.raises(RequestError, match=r"control character.*additionalProperties to false"):
            COMPILER.compile(StructuredOutputs(json=schema))


@pytest.mark.parametrize("allowed", [r"[^\x00-\x1f]", r"[\x01a]", r"\n", r"\\x01", r"[\]\x01]", "x01"])
def test_a_pattern_that_allows_it_among_others_is_kept(allowed: str) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string", "pattern": f"^a{allowed}b$"}}}
    assert not _takes(schema, '{"b":"ab"}')
