"""Answers under grammars of calls: whatever a model would say, they are calls of the format, kept to the schema."""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.errors import RequestError
from karat.request import StructuredOutputs
from karat.text import Tokenizer
from karat.text.grammar import GrammarCompiler
from karat.text.tools.grammar import CallGrammar, Tool
from karat.text.tools.parser import AnswerParser
from karat.text.tools.registry import FORMATS
from tests.text.tools.models import MESSAGES, byte_tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/city"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "sure": {"type": "boolean"},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Oslo", "Rome", 'Quote"s\\']}},
}
TOOLS = (
    Tool("get_weather", SCHEMA),
    Tool("clock", {"type": "object", "properties": {}, "additionalProperties": False}),
)
TAGS = ("<think>", "</think>")
PLAIN = byte_tokenizer(special=["</s>"])
MARKS = "[TOOL_CALLS] [ARGS] <tool_call> </tool_call> <|tool_call_start|> <|tool_call_end|>".split()
MARKS += '<|tool_call> <tool_call|> <|"|>'.split()
MARKED = byte_tokenizer(special=["</s>", *MARKS, *TAGS, *MESSAGES])
END = 256
FORM_NAMES = sorted(FORMATS)
IN_TAGS = [form for form in FORM_NAMES if not FORMATS[form].in_channels]


def begin(form: str, tokenizer: Tokenizer = PLAIN, tools: tuple[Tool, ...] = TOOLS, **given: Any) -> Any:
    asked = CallGrammar(form=form, tools=tools, **{"must_call": True, "single": False, "tags": TAGS} | given)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    return compiler.compile(StructuredOutputs(tool_calls=asked.encoded())).begin([END])


def takes(text: str, form: str, tokenizer: Tokenizer = PLAIN, **given: Any) -> bool:
    """Whether the whole of `text` is an answer."""
    state = begin(form, tokenizer, **given)
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        if not state.fitting([])[token_id]:
            return False
        state.push(token_id)
    may_end: bool = state.may_end
    return may_end


def drawn(state: Any, tokenizer: Tokenizer, rng: random.Random, *, most: int = 600) -> str:
    """A random answer. Tokens that come to an end are likelier than others."""
    closing = [tokenizer.encode(char, add_special_tokens=False)[0] for char in '"}])<\n']
    ids: list[int] = []
    while len(ids) < most:
        fits = state.fitting([END]).nonzero()[0].tolist()
        ends = [i for i in [END, *closing] if i in fits]
        token_id = rng.choice(ends) if ends and rng.random() < 0.5 else rng.choice(fits)
        if token_id == END:
            break
        state.push(token_id)
        ids.append(token_id)
        if state.is_complete:
            break
    return tokenizer.decode(ids, skip_special_tokens=False)


@given(
    st.sampled_from(FORM_NAMES), st.booleans(), st.booleans(), st.sampled_from(["none", "may", "open"]), st.integers(0)
)
def test_whatever_is_drawn_is_calls_that_keep_to_the_schema(
    form: str, marked: bool, single: bool, reasoning: Any, seed: int
) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    tokenizer = MARKED if marked else PLAIN
    state = begin(form, tokenizer, single=single, reasoning=reasoning)
    text = drawn(state, tokenizer, random.Random(seed))
    parser = AnswerParser(
        TAGS,
        is_open=reasoning == "open",
        form=FORMATS[form],
        tools={tool.name: tool.parameters for tool in TOOLS},
    )
    found = parser.parse(text)
    if not state.may_end:
        return  # it was cut
    assert found.calls and (found.text == "" or FORMATS[form].in_channels), text
    assert not single or len(found.calls) == 1
    for call in found.calls:
        schema = next(tool.parameters for tool in TOOLS if tool.name == call.name)
        jsonschema.validate(json.loads(call.arguments), schema)


CALL = {
    "hermes": '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
    "smollm": '<tool_call>[{"name": "clock", "arguments": {}}]</tool_call>',
    "llama": '{"name": "clock", "parameters": {}}',
    "mistral": '[TOOL_CALLS][{"name": "clock", "arguments": {}}]',
    "mistral-args": "[TOOL_CALLS]clock[ARGS]{}",
    "pythonic": "[clock()]",
    "lfm2": "<|tool_call_start|>[clock()]<|tool_call_end|>",
    "olmo": "<function_calls>clock()</function_calls>",
    "phi": '<|tool_call|>[{"name": "clock", "arguments": {}}]<|/tool_call|>',
    "granite": '<|tool_call|>[{"name": "clock", "arguments": {}}]',
    "qwen-xml": "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
    "seed-xml": "<seed:tool_call>\n<function=clock>\n</function>\n</seed:tool_call>",
    "gemma": "<|tool_call>call:clock{}<tool_call|>",
    "harmony": "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{}",
}
TWO = {
    "hermes": CALL["hermes"] + "\n" + CALL["hermes"],
    "smollm": '<tool_call>[{"name": "clock", "arguments": {}}, {"name": "clock", "arguments": {}}]</tool_call>',
    "llama": CALL["llama"] + "; " + CALL["llama"],
    "mistral": '[TOOL_CALLS][{"name": "clock", "arguments": {}}, {"name": "clock", "arguments": {}}]',
    "mistral-args": CALL["mistral-args"] * 2,
    "pythonic": "[clock(), clock()]",
    "lfm2": "<|tool_call_start|>[clock(), clock()]<|tool_call_end|>",
    "olmo": "<function_calls>clock()\nclock()</function_calls>",
    "phi": '<|tool_call|>[{"name": "clock", "arguments": {}}, {"name": "clock", "arguments": {}}]<|/tool_call|>',
    "granite": '<|tool_call|>[{"name": "clock", "arguments": {}}, {"name": "clock", "arguments": {}}]',
    "qwen-xml": CALL["qwen-xml"] + "\n" + CALL["qwen-xml"],
    "seed-xml": CALL["seed-xml"] + "\n" + CALL["seed-xml"],
    "gemma": CALL["gemma"] * 2,
    "harmony": CALL["harmony"] + "<|call|><|start|>assistant" + CALL["harmony"],
}


@pytest.mark.drawn(6)
@pytest.mark.parametrize("tokenizer", [PLAIN, MARKED], ids=["text", "special"])
@pytest.mark.parametrize("form", IN_TAGS)
def test_what_each_grammar_takes(form: str, tokenizer: Tokenizer) -> None:
    call, two = CALL[form], TWO[form]
    for may_speak in (False, True):
        assert takes(call, form, tokenizer, must_call=not may_speak)
        assert takes(two, form, tokenizer, must_call=not may_speak)
        assert takes(call, form, tokenizer, must_call=not may_speak, single=True)
        assert not takes(two, form, tokenizer, must_call=not may_speak, single=True)
        assert takes("Hello [f] {x}.", form, tokenizer, must_call=not may_speak) == may_speak
        assert takes("", form, tokenizer, must_call=not may_speak) == may_speak
        thought = f"<think>Hm.</think>\n\n{call}"
        assert takes(thought, form, tokenizer, must_call=not may_speak, reasoning="may")
        assert takes(thought[7:], form, tokenizer, must_call=not may_speak, reasoning="open")
        assert not takes(call, form, tokenizer, must_call=not may_speak, reasoning="open")
    assert not takes(call.replace("clock", "watch"), form, tokenizer)
    if not FORMATS[form].at_start:
        assert takes(f"First, {call}", form, tokenizer, must_call=False)
        assert not takes(f"First, {call.replace('clock', 'watch')}", form, tokenizer, must_call=False)
        spoken = f"<think>{FORMATS[form].marks[0]} x</think>Hello"
        if tokenizer is PLAIN:
            assert takes(spoken, form, tokenizer, must_call=False, reasoning="may")
        assert not takes(spoken, form, tokenizer, must_call=False)


def test_arguments_without_a_schema_are_any_object() -> None:
    free = (Tool("f"),)
    assert takes('<tool_call>\n{"name": "f", "arguments": {"a": [1, {}]}}\n</tool_call>', "hermes", tools=free)
    assert not takes('<tool_call>\n{"name": "f", "arguments": [1]}\n</tool_call>', "hermes", tools=free)


TEXTS: dict[str, dict[str, str]] = {
    "grammar": {
        "grammar": r"""
        start: LINE~1..3 "\"end\\" | "(" start ")"
        LINE: /[a-z"\\\t\x01]{1,6}/ LF
        %import common.LF
    """
    },
    "regex": {"regex": r'([a-z"\\\t\x01]{1,6}\n){1,3}"end\\'},
}
FITTING = re.compile(r'\(*([a-z"\\\t\x01]{1,6}\n)+"end\\\)*')


@given(st.sampled_from(FORM_NAMES), st.sampled_from(sorted(TEXTS)), st.booleans(), st.integers(0))
def test_the_text_of_a_tool_keeps_to_its_form_in_every_format(form: str, kind: str, marked: bool, seed: int) -> None:
    tokenizer, tools = MARKED if marked else PLAIN, (Tool("write", text=TEXTS[kind]),)
    state = begin(form, tokenizer, tools, single=True)
    text = drawn(state, tokenizer, random.Random(seed))
    if not state.may_end:
        return  # it was cut
    parser = AnswerParser(TAGS, form=FORMATS[form], tools={"write": {"properties": {"input": {"type": "string"}}}})
    (call,) = parser.parse(text).calls
    found = json.loads(call.arguments)
    assert found.keys() == {"input"} and FITTING.fullmatch(found["input"]), text


@pytest.mark.parametrize("kind", TEXTS)
def test_an_argument_of_a_form_has_white_space_as_every_object(kind: str) -> None:
    tools = (
        Tool("f", {"properties": {"input": {"type": "string"}}, "required": ["input"]}),
        Tool("g", text=TEXTS[kind]),
    )
    for value in (
        '{"input": "%s"}',
        '{"input":"%s"}',
        '{ "input"\n  : "%s"\n}',
        '{  "input": "%s"}',
        '{"input": "%s"} ',
        "{}",
    ):
        arguments = value.replace("%s", r"a\n\"end\\")
        one, other = (f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>' for name in "fg")
        assert takes(one, "hermes", tools=tools) == takes(other, "hermes", tools=tools), value


def test_names_beside_the_properties_come_if_the_schema_speaks_of_them() -> None:
    def may_have_more(**schema: Any) -> bool:
        text = '<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
        return takes(text, "hermes", tools=(Tool("f", {"properties": {"a": {}}, **schema}),))

    assert not may_have_more() and not may_have_more(required=["a"]) and not may_have_more(additionalProperties=False)
    assert may_have_more(additionalProperties=True) and may_have_more(required=["b"])
    none = (Tool("f", {"type": "object", "properties": {}}),)
    assert takes('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', "hermes", tools=none)
    assert not takes('<tool_call>\n{"name": "f", "arguments": {"": 1}}\n</tool_call>', "hermes", tools=none)


@pytest.mark.parametrize(
    ("form", "parameters", "words"),
    [
        ("hermes", {"type": "string"}, "tool f have type"),
        ("hermes", {"properties": {"a": {"not": {}}}}, "json: not of /properties/a: "),
        ("hermes", {"x-guidance": {}}, "x-guidance"),
        ("hermes", {"properties": []}, "expected an object and a list"),
        ("pythonic", {"required": 5}, "expected an object and a list"),
        ("hermes", {"properties": {}, "required": [[]]}, "expected an object and a list"),
        ("pythonic", {"anyOf": []}, "anyOf"),
        ("pythonic", None, "without a schema"),
        ("pythonic", {"properties": {"a-b": {}}}, "a-b"),
        ("pythonic", {"required": ["a"]}, "no property"),
    ],
)
def test_what_cannot_be_kept_to_is_refused(form: str, parameters: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        begin(form, tools=(Tool("f", parameters),))


@pytest.mark.parametrize("form", FORM_NAMES)
def test_a_text_whose_form_is_refused_is_named_with_its_tool(form: str) -> None:
    for text, words in (({"grammar": "start: %json {}"}, "%json"), ({"regex": "(a{1000}){1000}"}, "1e.06 times")):
        with pytest.raises(RequestError, match=f"^the text of the tool write: .*{words}"):
            begin(form, tools=(*TOOLS, Tool("write", text=text)))


@pytest.mark.parametrize(
    "text", ["x", "{}", "[" * 9999, '{"form":"other","tools":[{"name":"f"}],"must_call":true,"single":true}']
)
def test_a_text_that_is_no_grammar_of_calls(text: str) -> None:
    with pytest.raises(RequestError, match="tool_calls"):
        GrammarCompiler(PLAIN, PLAIN.vocab_size).compile(StructuredOutputs(tool_calls=text))
