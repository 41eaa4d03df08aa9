"""Gemma 4's calls: texts between quotes of their own that the model does not escape, and grammars of nested values.

Covers: karat.text.tools.marked.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.engine.model_loading.defaults import turn_end_ids
from karat.errors import RequestError
from karat.text.tools.dialect import dialect_of, written
from karat.text.tools.events import CallArguments, ParsedAnswer, ToolCall
from karat.text.tools.grammar import Tool
from karat.text.tools.parser import AnswerParser
from karat.text.tools.registry import FORMATS
from tests.text.tools.answers import KEYWORDS, parts
from tests.text.tools.models import byte_tokenizer
from tests.text.tools.test_grammar import MARKED, PLAIN, begin, drawn, takes

FORM = FORMATS["gemma"]
NO_TOOLS: dict[str, Any] = {"f": None, "g": None}
Q = '<|"|>'


def parser() -> AnswerParser:
    return AnswerParser(form=FORM, tools=NO_TOOLS)


def read(text: str) -> list[tuple[str, Any]]:
    found = parser().parse(text)
    assert found.text == "" and all(call.is_whole for call in found.calls)
    return [(call.name, json.loads(call.arguments)) for call in found.calls]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f'{Q}It\'s "wet", {{so}}\n{Q}', 'It\'s "wet", {so}\n'),
        (f'{Q}<|"a<<|{Q}', '<|"a<<|'),
        (f"{Q}{Q}", ""),
        ('"plain \\u00e9"', "plain é"),
        (f"[1, {Q}a{Q},[],{{}},[ true ,false,null,None]]", [1, "a", [], {}, [True, False, None, None]]),
        (f'{{a b:1,{Q}c:d{Q}:{{e:-2.5e3}}, "f" : [2] }}', {"a b": 1, "c:d": {"e": -2500.0}, "f": [2]}),
        ("True", True),
    ],
)
def test_a_value(value: str, expected: Any) -> None:
    calls = read(f"<|tool_call>call:f{{a:{value},b:{value} , c:1}}<tool_call|><|tool_call>call:g{{}}<tool_call|>")
    assert calls == [("f", {"a": expected, "b": expected, "c": 1}), ("g", {})]


SCALARS = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6) | st.text(max_size=12)
NESTED = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=3))
CALLS = st.lists(
    st.tuples(st.sampled_from("fg"), st.dictionaries(KEYWORDS, NESTED, max_size=3)), min_size=1, max_size=3
)


@given(CALLS, st.data())
def test_what_is_written_is_read_however_it_is_cut(calls: list[Any], data: st.DataObject) -> None:
    text = "".join(each for each, _ in written(FORM, calls).pieces)
    split = parser()
    events = [event for part in data.draw(parts(text)) for event in split.feed(part)] + split.finish()
    assert read(text) == calls
    told = "".join(event.text for event in events if isinstance(event, CallArguments))
    assert told == "".join(call.arguments for call in parser().parse(text).calls)


def test_a_text_is_told_before_it_ends() -> None:
    events = parser().feed(f"<|tool_call>call:f{{a:{Q}It's first, ")
    assert "".join(e.text for e in events if isinstance(e, CallArguments)) == '{"a": "It\'s first, '


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ("<|tool_call>call:f{a:1}", "", [ToolCall("f", '{"a": 1}')]),  # the end of the answer stands for the token
        ("<|tool_call>call:f{a:1", "", [ToolCall("f", '{"a": 1', is_whole=False)]),
        ("<|tool_call>call:other{a:1}<tool_call|>", "<|tool_call>call:other{a:1}<tool_call|>", []),
        ("<|tool_call>call:f{a:Oslo}<tool_call|>", "<|tool_call>call:f{a:Oslo}<tool_call|>", []),
        ("<|tool_call>call:f{a:1,a:2}", "a:2}", [ToolCall("f", '{"a": 1', is_whole=False)]),
        ("Hello.\n<|tool_call>call:g{}<tool_call|>", "Hello.", [ToolCall("g", "{}")]),
        ("<|tool_call>call:f{a:" + "[" * 200, "<|tool_call>call:f{a:" + "[" * 200, []),
    ],
)
def test_what_is_cut_or_no_call(text: str, said: str, calls: list[ToolCall]) -> None:
    found = parser().parse(text)
    assert isinstance(found, ParsedAnswer) and list(found.calls) == calls
    assert found.text.endswith(said) and (bool(found.text) == bool(said))


NODE: dict[str, Any] = {
    "type": "object",
    "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {"$ref": "#/$defs/node"}},
    "required": ["v"],
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 9, "description": "Any."},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
        "unit": {"enum": ["m/s", 'k"m', 3, None, {"a": ["b"]}]},
        "days": {"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 2, "maxItems": 3},
        "either": {"anyOf": [{"type": "boolean"}, {"type": ["null", "array"], "items": {"type": "string"}}]},
        "node": {"$ref": "#/$defs/node"},
        "free": {},
        "more": {"type": "object", "additionalProperties": {"type": "boolean"}},
    },
    "required": ["city", "days", "node"],
    "$defs": {"node": NODE},
}


@given(st.booleans(), st.integers(0))
def test_whatever_is_drawn_keeps_to_a_schema_of_every_kind(marked: bool, seed: int) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    tokenizer = MARKED if marked else PLAIN
    state = begin("gemma", tokenizer, (Tool("f", SCHEMA),), single=True)
    text = drawn(state, tokenizer, random.Random(seed))
    if state.may_end:
        ((_, arguments),) = read(text)
        jsonschema.validate(arguments, SCHEMA)


@pytest.mark.parametrize(
    ("inner", "fits"),
    [
        (f"city:{Q}Oslo{Q},days:[1,2.5],node:{{v:3,next:{{v:4}}}}", True),
        (f"city:{Q}Oslo{Q},code:{Q}NO-12{Q},unit:{{a:[{Q}b{Q}]}},days:[1,2],node:{{v:3}}", True),
        (f"city:{Q}Oslo{Q},days:[1,2,3],either:[{Q}x{Q}],node:{{v:3}},free:{{x:[true]}},more:{{y:false}}", True),
        (f"city:{Q}{Q},days:[1,2],node:{{v:3}}", False),
        (f"city:{Q}Oslo{Q},days:[1],node:{{v:3}}", False),
        (f"city:{Q}Oslo{Q},days:[1,2,3,4],node:{{v:3}}", False),
        (f"city:{Q}Oslo{Q},code:{Q}NO-1x{Q},days:[1,2],node:{{v:3}}", False),
        (f"city:{Q}Oslo{Q},days:[1,2],node:{{}}", False),
        (f"city:{Q}Oslo{Q},days:[1,2]", False),
    ],
)
@pytest.mark.parametrize("tokenizer", [PLAIN, MARKED], ids=["text", "special"])
def test_what_the_grammar_takes(inner: str, fits: bool, tokenizer: Any) -> None:
    text = f"<|tool_call>call:f{{{inner}}}<tool_call|>"
    assert takes(text, "gemma", tokenizer, tools=(Tool("f", SCHEMA),)) == fits
    assert takes(text, "gemma", tokenizer, tools=(Tool("f"),))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"a": {"not": {}}}, "cannot keep to not"),
        ({"a": {"type": "array", "prefixItems": []}}, "prefixItems"),
        ({"a:b": {}}, "the name 'a:b'"),
        ({"a": {"$ref": "#/nowhere"}}, "the reference '#/nowhere'"),
        ({"a": {"enum": [f"x{Q}"]}}, "the value"),
        ({"a": {"type": "date"}}, "type 'date'"),
    ],
)
def test_what_cannot_be_kept_to_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(RequestError, match=f"the parameters of the tool f: .*{words}"):
        begin("gemma", tools=(Tool("f", {"properties": schema}),))


@pytest.mark.parametrize("name", ["google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"])
def test_the_released_templates(name: str, data_dir: Path) -> None:
    template = (data_dir / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    marks = ["<|tool_call>", "<tool_call|>", "<|tool_response>", "<|channel>", "<channel|>", "<turn|>", Q]
    tokenizer = byte_tokenizer(template, special=marks)
    dialect = dialect_of(tokenizer)
    assert dialect.form is FORM and dialect.knows_tools and dialect.writes_calls and dialect.hides_marks
    assert dialect.tags == ("<|channel>thought\n", "<channel|>") and "enable_thinking" in dialect.variables
    assert {tokenizer.added_tokens[i] for i in turn_end_ids(tokenizer)} == {"<turn|>", "<|tool_response>"}
    answer = AnswerParser(dialect.tags, form=dialect.form, tools=NO_TOOLS).parse(
        f"<|channel>thought\nFirst f.\n<channel|>Wait.<|tool_call>call:f{{a:{Q}b{Q}}}<tool_call|>"
    )
    assert answer == ParsedAnswer("Wait.", "First f.", (ToolCall("f", '{"a": "b"}'),))
