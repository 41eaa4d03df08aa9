"""Calls as XML: bare texts that mean what the schema says, whatever they hold; forced ones keep to the schema.

Covers: karat.text.tools.xml, karat.text.tools.bare, karat.text.tools.parameters.
"""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.errors import RequestError
from karat.request import StructuredOutputs
from karat.text.grammar import GrammarCompiler
from karat.text.tools.bare import ALL, as_json, kinds
from karat.text.tools.dialect import written
from karat.text.tools.events import CallArguments, ToolCall
from karat.text.tools.grammar import CallGrammar, Tool
from karat.text.tools.parser import AnswerParser
from karat.text.tools.registry import FORMATS
from tests.text.tools.answers import parts
from tests.text.tools.test_grammar import PLAIN, drawn, takes

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "sure": {"type": "boolean"},
        "kind": {"$ref": "#/$defs/kind"},
        "list": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        "either": {"type": ["string", "integer"]},
    },
    "required": ["text", "sure"],
    "$defs": {"kind": {"enum": ["a", "b b"]}},
}
FORM = FORMATS["qwen-xml"]


def call(*given: tuple[str, str], tag: bool = True) -> str:
    inner = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in given)
    text = f"<function=f>\n{inner}</function>"
    return f"<tool_call>\n{text}\n</tool_call>" if tag else text


def read(text: str, schema: Any = SCHEMA, form: Any = FORM) -> Any:
    return AnswerParser(form=form, tools={"f": schema}).parse(text)


def arguments(text: str, schema: Any = SCHEMA) -> Any:
    ((made,), said) = (read(text, schema).calls, read(text, schema).text)
    assert made.is_whole and said == ""
    return json.loads(made.arguments)


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("text", "5", "5"),
        ("text", "true", "true"),
        ("text", "", ""),
        ("text", '  a "b"\\n\n\n', '  a "b"\\n\n\n'),
        ("text", "{'a': 1}", "{'a': 1}"),
        ("maybe", "null", None),
        ("maybe", "None", None),
        ("maybe", '"a"', '"a"'),
        ("maybe", "5", "5"),
        ("count", "5", 5),
        ("count", " 7 ", 7),
        ("count", "five", "five"),  # no integer: the text itself, as vLLM gives it
        ("sure", "True", True),
        ("sure", "false", False),
        ("kind", "b b", "b b"),
        ("list", '["a", "b"]', ["a", "b"]),
        ("list", "['a']", ["a"]),
        ("either", "5", 5),
        ("either", "5a", "5a"),
        ("unknown", '{"a": [1]}', {"a": [1]}),
        ("unknown", "bare", "bare"),
    ],
)
def test_a_value_means_what_the_schema_says(name: str, written: str, value: Any) -> None:
    assert arguments(call((name, written))) == {name: value}


INNER = st.lists(
    st.sampled_from(
        ["</parameter>", "</function>", "</tool_call>", "<parameter=a>", "\n", " ", "<", "x", '"', "\\", "é"]
    ),
    max_size=8,
).map("".join)


@given(INNER, st.data())
def test_texts_are_kept_to_the_letter_and_told_as_they_come(inner: str, data: st.DataObject) -> None:
    """But for one that holds the end of a value and what follows it: nothing tells these apart."""
    text = call(("text", inner), ("sure", "true"))
    parser = AnswerParser(form=FORM, tools={"f": SCHEMA})
    events = [event for part in data.draw(parts(text)) for event in parser.feed(part)] + parser.finish()
    whole = read(text)
    assert "".join(e.text for e in events if isinstance(e, CallArguments)) == "".join(c.arguments for c in whole.calls)
    squeezed = "".join(inner.split())
    if not any(
        end in squeezed for end in ("</parameter><parameter=", "</parameter></function>", "</function></tool_call>")
    ):
        (made,) = whole.calls
        assert json.loads(made.arguments) == {"text": inner, "sure": True}


def test_a_text_is_told_before_it_ends() -> None:
    parser = AnswerParser(form=FORM, tools={"f": SCHEMA})
    events = parser.feed("<tool_call>\n<function=f>\n<parameter=text>\nfirst </param")
    assert "".join(e.text for e in events if isinstance(e, CallArguments)) == '{"text": "first '


@pytest.mark.parametrize(
    "text",
    [
        call(("text", "x"), tag=False),  # models leave the tag around a call out
        call(("text", "x"), tag=False) + "\n</tool_call>",
        call(("text", "x")).replace("\n</tool_call>", ""),
        "<tool_call><function=f><parameter=text>x</parameter></function></tool_call>",
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</function>\n</tool_call>",
    ],
)
def test_calls_that_lack_a_tag_are_read(text: str) -> None:
    assert arguments(text) == {"text": "x"}


def test_what_is_no_call_stays_text() -> None:
    for text in ("<function=other>\n</function>", "Write <function=f> here.", "<tool_call>\n<function=f>\nx"):
        assert read(text).text == text and read(text).calls == ()
    two = read("A\n" + call(("text", "a")) + "\n" + call(("text", "b")))
    assert two.text == "A" and [json.loads(each.arguments)["text"] for each in two.calls] == ["a", "b"]
    cut = read(call(("text", "abc"))[:-40])
    assert cut.calls == (ToolCall("f", '{"text": "abc', is_whole=False),) or not cut.calls[0].is_whole


@pytest.mark.parametrize("form", ["qwen-xml", "seed-xml"])
def test_a_call_that_is_written_is_read(form: str) -> None:
    given = {"text": "a\nb", "count": 3, "sure": False, "list": ["x"]}
    text = written(FORMATS[form], [("f", given)])
    (made,) = read(text, form=FORMATS[form]).calls
    assert json.loads(made.arguments) == given


@given(st.sampled_from(["qwen-xml", "seed-xml"]), st.booleans(), st.integers(0))
def test_whatever_is_drawn_keeps_to_the_schema(form: str, free: bool, seed: int) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    asked = CallGrammar(form=form, tools=(Tool("f", None if free else SCHEMA),), must_call=True, single=True)
    compiler = GrammarCompiler(PLAIN, PLAIN.vocab_size)
    state = compiler.compile(StructuredOutputs(tool_calls=asked.encoded())).begin([256])
    text = drawn(state, PLAIN, random.Random(seed))
    if state.may_end:
        found = read(text, None if free else SCHEMA, FORMATS[form])
        (made,) = found.calls
        assert found.text == "" and made.is_whole
        if not free:
            value = json.loads(made.arguments)
            if "either" not in value or not isinstance(value["either"], str):
                jsonschema.validate(value, SCHEMA)


def of(**properties: Any) -> tuple[Tool, ...]:
    return (Tool("f", {"type": "object", "properties": properties, "required": list(properties)}),)


def test_forced_texts_keep_to_lengths_patterns_and_enums() -> None:
    for schema, fitting, others in (
        ({"type": "string", "maxLength": 2}, ["", "ab"], ["abc"]),
        ({"type": "string", "pattern": "^a+$"}, ["aa"], ["", "b"]),
        ({"type": "string", "pattern": "b/c"}, ["ab/cd"], ["a"]),
        ({"enum": ["x", "y z"]}, ["y z"], ["x y"]),
        ({"type": "string"}, ["a\nb", "</x>"], []),
        ({"type": "integer"}, ["5"], ["x"]),
    ):
        for texts, does in ((fitting, True), (others, False)):
            for text in texts:
                assert takes(call(("p", text)), "qwen-xml", tools=of(p=schema)) == does, (schema, text)
    assert not takes(call(), "qwen-xml", tools=of(p={"type": "string"})), "it is required"


def test_text_has_no_call_that_is_not_bound() -> None:
    for may in ("Hello", "a < b", call(("text", "a"), ("sure", "true"))):
        assert takes(may, "qwen-xml", tools=(Tool("f", SCHEMA),), must_call=False)
    assert not takes(call(("text", "a"), tag=False), "qwen-xml", tools=(Tool("f", SCHEMA),), must_call=False)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"properties": {"a>b": {}}}, "no name for a tag"),
        ({"properties": {"a": {"type": "string", "pattern": "^a|b$"}}}, "pattern"),
        ({"properties": {"a": {"type": "string", "enum": ["</parameter>"]}}}, "enum"),
        ({"anyOf": []}, "anyOf"),
        ({"properties": {}, "required": ["a"]}, "no property"),
    ],
)
def test_what_cannot_be_kept_to_is_refused(parameters: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        takes("", "qwen-xml", tools=(Tool("f", parameters),))


def test_types_of_schemas() -> None:
    for schema, expected in (
        ({"type": "number"}, {"number", "integer"}),
        ({"const": 1.5}, {"number", "integer"}),
        ({"enum": ["a", None]}, {"string", "null"}),
        ({"allOf": [{"$ref": "#/$defs/a"}, {"type": ["string", "array"]}]}, {"string"}),
        ({"$ref": "#/$defs/loop"}, ALL),
        (True, ALL),
        ({}, ALL),
    ):
        root = {"$defs": {"a": {"type": ["string", "null"]}, "loop": {"$ref": "#/$defs/loop"}}}
        assert kinds(schema, root) == expected
    assert as_json("x", frozenset({"integer"})) == '"x"' and as_json("1e3", frozenset({"number"})) == "1e3"


def test_a_text_of_a_grammar_stands_as_it_is() -> None:
    for form, fitting, others in (
        ({"regex": "[+-][a-z]+"}, ["+ab"], ["ab", "+"]),
        (
            {"grammar": 'start: "begin" LF line+ "end"\nline: /[^\\n]+/ LF\n%import common.LF'},
            ['begin\nx {"\nend'],
            ["begin"],
        ),
    ):
        tools = (Tool("f", None, form),)
        for texts, does in ((fitting, True), (others, False)):
            for text in texts:
                assert takes(call(("input", text)), "qwen-xml", tools=tools) == does, text
    json_call = '<tool_call>\n{"name": "f", "arguments": {"input": "+a"}}\n</tool_call>'
    by_grammar = (Tool("f", None, {"grammar": 'start: "+" /[a-z]/'}),)
    assert takes(json_call, "hermes", tools=by_grammar)
    assert not takes(json_call.replace("+", ""), "hermes", tools=by_grammar)
    assert takes(json_call, "hermes", tools=(Tool("f", None, {"regex": "[+-][a-z]+"}),))
    assert not takes(json_call.replace("+", ""), "hermes", tools=(Tool("f", None, {"regex": "[+-][a-z]+"}),))
