"""Harmony: answers of messages in channels, as they are read, held and given back.

Covers: karat.text.tools.harmony, karat.text.tools.channels, karat.text.tools.channel_grammar, karat.text.tools.history.
"""

import json
import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.request import StructuredOutputs
from karat.text import Tokenizer
from karat.text.grammar import Grammar, GrammarCompiler
from karat.text.tools.calling import Calling, Offer
from karat.text.tools.dialect import Dialect, dialect_of
from karat.text.tools.events import ParsedAnswer, Reasoning, Text, ToolCall, gathered
from karat.text.tools.parser import AnswerParser
from karat.text.tools.registry import FORMATS
from tests.text.tools.answers import ARGUMENTS, TOOLS, parts
from tests.text.tools.models import HARMONY, MESSAGES, byte_tokenizer

FORM = FORMATS["harmony"]
NEXT = "<|end|><|start|>assistant"
THOUGHT, ASIDE, FINAL = (f"<|channel|>{name}<|message|>" for name in ("analysis", "commentary", "final"))
BEFORE, BEHIND = (
    " to=functions.f<|channel|>commentary json<|message|>",
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
)
WHOLE = ToolCall("f", '{"a": 1}')


def parsed(text: str, begun: str = "") -> ParsedAnswer:
    return AnswerParser(form=FORM, tools=TOOLS, begun=begun).parse(text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (f"{THOUGHT}Hm.{NEXT}{FINAL}Yes.<|return|>", ParsedAnswer("Yes.", "Hm.", ())),
        (f"{THOUGHT}A{NEXT}{ASIDE}B{NEXT}{THOUGHT}C{NEXT}{FINAL}D", ParsedAnswer("B\n\nD", "A\n\nC", ())),
        (f'{THOUGHT}Hm.{NEXT}{BEFORE}{{"a": 1}}<|call|>', ParsedAnswer("", "Hm.", (WHOLE,))),
        (f'{BEHIND}{{"a": 1}}', ParsedAnswer("", "", (WHOLE,))),
        ('<|channel|>analysis to=functions.f<|message|>{"a": 1}', ParsedAnswer("", "", (WHOLE,))),
        (f'{ASIDE}Look:{NEXT}{BEFORE} {{"a": 1}}\n<|call|>', ParsedAnswer("Look:", "", (WHOLE,))),
        (f"{FINAL}a < b <|end|> c <|start|> d <|mess", ParsedAnswer("a < b <|end|> c <|start|> d <|mess", "", ())),
        (f"{FINAL} a \n", ParsedAnswer(" a \n", "", ())),
        (f"{THOUGHT}Hm.<|start|>assistant{FINAL}Yes.", ParsedAnswer("Yes.", "Hm.", ())),
        (f"<|start|>assistant{FINAL}Yes.", ParsedAnswer("Yes.", "", ())),
        (f"<|channel|>other<|message|>Yes.{NEXT}<|message|>No.", ParsedAnswer("Yes.\n\nNo.", "", ())),
        ("Hello.", ParsedAnswer("Hello.", "", ())),
        ("to be", ParsedAnswer("to be", "", ())),
        ("<", ParsedAnswer("<", "", ())),
        ("<|channel|>anal", ParsedAnswer("", "", ())),
        (f"{FINAL}Yes.<|end|><|start|>assis", ParsedAnswer("Yes.", "", ())),
        (BEFORE, ParsedAnswer("", "", ())),
        (BEFORE + '{"a": [1', ParsedAnswer("", "", (ToolCall("f", '{"a": [1', is_whole=False),))),
        (BEFORE + "print()", ParsedAnswer(BEFORE + "print()", "", ())),
        (BEFORE.replace(".f", ".x") + "{}", ParsedAnswer(BEFORE.replace(".f", ".x") + "{}", "", ())),
    ],
)
def test_answers_are_read(text: str, answer: ParsedAnswer) -> None:
    assert parsed(text) == answer


@pytest.mark.parametrize(
    ("text", "begun", "answer"),
    [
        (" and more.", FINAL, ParsedAnswer(" and more.", "", ())),
        (f" so.{NEXT}{FINAL}Yes.", THOUGHT, ParsedAnswer("Yes.", " so.", ())),
        ("final<|message|>Yes.", "<|channel|>", ParsedAnswer("Yes.", "", ())),
        ('{"a": 1}', BEFORE, ParsedAnswer("", "", (WHOLE,))),
    ],
)
def test_an_answer_goes_on_with_the_header_of_the_prompt(text: str, begun: str, answer: ParsedAnswer) -> None:
    prompt = f"<|start|>user<|message|>Hi<|end|><|start|>assistant{begun}"
    dialect = Dialect(form=FORM)
    assert dialect.begun(prompt) == begun and dialect.begun(prompt + "Well,") in (begun, begun + "Well,")
    assert dialect.begun(f"{prompt}<|end|><|start|>user<|message|>Hi<|end|>") == ""
    assert parsed(text, begun) == answer


_BODIES = st.text(max_size=8) | st.sampled_from(["<", "<|", "<|end|> x", "a<|message|>b", "to=f"])
_SPOKEN = st.tuples(st.sampled_from([THOUGHT, ASIDE, FINAL]), _BODIES)
_CALLED = st.tuples(st.sampled_from([BEFORE, BEHIND]), ARGUMENTS.map(json.dumps))


@given(st.lists(_SPOKEN | _CALLED, max_size=4), st.integers(0), st.data())
def test_parts_do_not_matter(messages: list[tuple[str, str]], cut: int, data: st.DataObject) -> None:
    """Of answers cut anywhere, too; and of a whole one the parts are those of its messages."""
    text = "<|end|><|start|>assistant".join(header + body for header, body in messages)
    whole = parsed(text)
    for header, channel in ((THOUGHT, whole.reasoning), (FINAL, whole.text)):
        for body in (body for mark, body in messages if mark == header):
            assert body.removesuffix("<|").removesuffix("<") in channel or "<|" in body
    assert [call.arguments for call in whole.calls] == [
        json_of(body) for mark, body in messages if "to=functions" in mark
    ]
    text = text[: cut % (len(text) + 1)]
    reader = AnswerParser(form=FORM, tools=TOOLS)
    events = [event for part in data.draw(parts(text)) for event in reader.feed(part)] + reader.finish()
    assert gathered(events) == parsed(text)
    assert all(event.text for event in events if isinstance(event, Text | Reasoning))


def json_of(text: str) -> str:
    """As readers of all kinds take it: half of a surrogate pair is told as U+FFFD."""
    call = parsed(BEFORE + text).calls[0]
    assert json.loads(call.arguments) == json.loads(text)
    return call.arguments


MARKED = byte_tokenizer(special=["</s>", *MESSAGES])
SPELLED = byte_tokenizer(special=["</s>"])  # marks are texts
END = 256
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
OFFERS = (Offer("f", SCHEMA), Offer("get_weather"))
WORDS = StructuredOutputs(choice=["cat", "dog"])
PROMPT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"


@cache
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size)


def held(tokenizer: Tokenizer, calling: Calling, answer: StructuredOutputs | None = None, begun: str = "") -> Grammar:
    form = calling.structured(Dialect(knows_tools=True, form=FORM), PROMPT + begun, answer)
    assert form is not None
    return compiler(tokenizer).compile(form)


def takes(grammar: Grammar, tokenizer: Tokenizer, text: str) -> bool:
    """Whether the whole of `text` is an answer."""
    state = grammar.begin([END])
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        if not state.fitting([])[token_id]:
            return False
        state.push(token_id)
    return state.may_end


CALL = '{"a": 1}'
SAID = {  # what the model says, and whether it is a call, an answer, both or neither
    BEFORE + CALL: "call",
    BEHIND + CALL: "call",
    f"{THOUGHT}Hm.{NEXT}{THOUGHT}{NEXT}{BEHIND.replace('commentary', 'analysis')}{CALL}": "call",
    f"{BEHIND.replace(' <|constrain|>json', '')}{CALL}": "call",
    f"{ASIDE}Look.{NEXT}{BEFORE}{CALL}": "spoken call",
    f"{BEFORE}{CALL}<|call|><|start|>assistant{BEFORE}{CALL}": "two calls",
    f"{FINAL}cat": "answer",
    f"{THOUGHT}Hm.{NEXT}{FINAL}cat": "answer",
    f"{ASIDE}Look.{NEXT}{FINAL}cat": "spoken answer",
    f"{FINAL}A bird.": "free answer",
    BEFORE: "",
    "": "",
    "cat": "",
    f"{THOUGHT}Hm.": "",
    f"{ASIDE}Look.": "",
    f"<|channel|>thought<|message|>Hm.{NEXT}{FINAL}cat": "",
    f"{FINAL}cat{NEXT}{FINAL}dog": "",
    BEFORE.replace("functions.f", "functions.g") + CALL: "",
    BEFORE.replace("functions.f", "python") + CALL: "",
    BEFORE.replace("commentary", "final") + CALL: "",
    BEFORE + "{": "",
}


@pytest.mark.parametrize("tokenizer", [MARKED, SPELLED], ids=["special", "text"])
def test_what_each_grammar_takes(tokenizer: Tokenizer) -> None:
    called = {"call", "spoken call", "two calls"}
    answered = {"answer", "spoken answer", "free answer"}
    grammars: list[tuple[Calling, StructuredOutputs | None, set[str]]] = [
        (Calling(OFFERS), None, called | answered),
        (Calling(OFFERS, must_call=True), None, called),
        (Calling(OFFERS, single=True), None, (called | answered) - {"two calls"}),
        (Calling(OFFERS[:1], must_call=True, single=True, is_part=True), None, called - {"two calls"}),
        (Calling(OFFERS), WORDS, {"call", "two calls", "answer"}),
        (Calling(OFFERS, must_call=True), WORDS, called),
        (Calling(), WORDS, {"answer"}),
    ]
    for calling, answer, kinds in grammars:
        grammar = held(tokenizer, calling, answer)
        for text, kind in SAID.items():
            assert takes(grammar, tokenizer, text) == (kind in kinds), (text, kinds)
    assert Calling().structured(Dialect(form=FORM), PROMPT) is None, "without tools or a form nothing is held"


def test_arguments_keep_to_the_schema_as_with_other_templates() -> None:
    strict = (Offer("f", SCHEMA, strict=True),)
    for offers, must_call, holds in ((OFFERS, False, False), (OFFERS, True, True), (strict, False, True)):
        for arguments in ('{"b": 2}', "[1]", '{"a": 1.5}'):
            is_taken = takes(held(MARKED, Calling(offers, must_call)), MARKED, BEFORE + arguments)
            assert is_taken == (not holds and arguments.startswith("{"))


@pytest.mark.parametrize(
    ("begun", "rest", "calling", "answer", "fits"),
    [
        (FINAL, "cat", Calling(OFFERS), None, True),
        (FINAL, "cat", Calling(), WORDS, True),
        (FINAL, "bird", Calling(), WORDS, False),
        (FINAL, f"{FINAL}cat", Calling(), WORDS, False),
        (FINAL, "cat", Calling(OFFERS, must_call=True), None, False),
        (FINAL, f"cat{NEXT}{BEFORE}{CALL}", Calling(OFFERS, must_call=True), None, True),
        (THOUGHT, f"Hm.{NEXT}{FINAL}cat", Calling(), WORDS, True),
        (THOUGHT, f"Hm.{NEXT}{BEFORE}{CALL}", Calling(OFFERS), WORDS, True),
        (ASIDE, f"Hm.{NEXT}{BEFORE}{CALL}", Calling(OFFERS), None, True),
    ],
)
def test_a_message_that_the_prompt_opened_goes_on(
    begun: str, rest: str, calling: Calling, answer: StructuredOutputs | None, fits: bool
) -> None:
    for tokenizer in (MARKED, SPELLED):
        assert takes(held(tokenizer, calling, answer, begun), tokenizer, rest) == fits


@given(st.sampled_from([MARKED, SPELLED]), st.booleans(), st.booleans(), st.integers(0))
def test_whatever_is_drawn_is_read_as_it_was_held(
    tokenizer: Tokenizer, must_call: bool, has_form: bool, seed: int
) -> None:
    form = StructuredOutputs(json=SCHEMA) if has_form else None
    strict = tuple(Offer(name, SCHEMA, strict=True) for name in ("f", "get_weather"))
    state = held(tokenizer, Calling(strict, must_call), form).begin([END])
    rng, ids = random.Random(seed), list[int]()
    likely = [tokenizer.encode(text, add_special_tokens=False)[0] for text in [*MESSAGES, *' "}f1']]
    while len(ids) < 400 and not state.is_complete:
        fits = state.fitting([END]).nonzero()[0].tolist()
        token_id = (
            rng.choice([i for i in [END, *likely] if i in fits] or fits) if rng.random() < 0.7 else rng.choice(fits)
        )
        if token_id == END:
            break
        state.push(token_id)
        ids.append(token_id)
    if not state.may_end:
        return  # it was cut
    text = tokenizer.decode(ids, skip_special_tokens=False)
    found = AnswerParser(form=FORM, tools=TOOLS).parse(text)
    assert all(json.loads(call.arguments).keys() == {"a"} for call in found.calls)
    assert found.calls or not must_call
    if has_form and not must_call:
        assert (found.text == "") == bool(found.calls) and (found.calls or json.loads(found.text).keys() == {"a"}), text
    elif not found.calls:
        assert "final<|message|>" in text


def _called(name: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": CALL}}


USER, AGAIN = {"role": "user", "content": "Hello"}, {"role": "user", "content": "Thanks"}
LOOP: list[dict[str, Any]] = [
    USER,
    {
        "role": "assistant",
        "content": "Look.",
        "reasoning_content": "Hm.",
        "tool_calls": [_called("f", "1"), _called("get_weather", "2")],
    },
    {"role": "tool", "tool_call_id": "2", "content": "wet"},
    {"role": "tool", "tool_call_id": "1", "content": "one"},
]
FIRST = '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>'
RESULT = '<|start|>functions.{} to=assistant<|channel|>commentary<|message|>"{}"<|end|>'
CALLED = FIRST + RESULT.format("f", "one") + FIRST.replace(".f", ".get_weather") + RESULT.format("get_weather", "wet")
ANALYSIS = "<|start|>assistant<|channel|>analysis<|message|>Hm.\n\nLook.<|end|>"


@pytest.fixture(params=["released", "short"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "short":
        return byte_tokenizer(HARMONY, special=MESSAGES)
    file = request.getfixturevalue("data_dir") / "templates" / "openai-gpt-oss-120b.jinja"
    return byte_tokenizer(file.read_text(encoding="utf-8"), special=MESSAGES)


def test_thoughts_are_kept_within_a_loop_of_tools_and_dropped_after_it(tokenizer: Tokenizer) -> None:
    dialect = dialect_of(tokenizer)
    assert dialect.form == FORM and dialect.reasons and dialect.hides_marks
    loop = tokenizer.render_chat(dialect.shown(LOOP))
    assert loop.endswith(f"<|start|>user<|message|>Hello<|end|>{ANALYSIS}{CALLED}<|start|>assistant")
    answer = {"role": "assistant", "content": "It is wet.", "reasoning_content": "So."}
    later = tokenizer.render_chat(dialect.shown([*LOOP, answer, AGAIN]))
    final = "<|start|>assistant<|channel|>final<|message|>It is wet.<|end|>"
    assert f"<|message|>Hello<|end|>{CALLED}{final}<|start|>user<|message|>Thanks<|end|>" in later
    assert "Hm." not in later and "So." not in later


def test_results_that_are_of_no_call_of_the_message_come_after_it(tokenizer: Tokenizer) -> None:
    odd = [{"role": "tool", "tool_call_id": call_id, "content": call_id} for call_id in ("3", "1", "3")]
    shown = dialect_of(tokenizer).shown([*LOOP[:2], *odd])
    assert [message.get("tool_call_id") for message in shown] == [None, None, "1", None, "3", "3"]
    same = {"role": "assistant", "tool_calls": [_called("f", "1"), _called("f", "1")]}
    shown = dialect_of(tokenizer).shown([USER, same, *odd[1:2]])
    assert [message["role"] for message in shown] == ["user", "assistant", "tool", "assistant"]


def test_instructions_are_one_message_and_tools_have_descriptions(tokenizer: Tokenizer) -> None:
    dialect, system = dialect_of(tokenizer), {"role": "system", "content": "One."}
    later = {"role": "developer", "content": [{"type": "text", "text": "Two."}, {"type": "text", "text": "Three."}]}
    shown = dialect.shown([system, USER, later, AGAIN])
    assert [message["role"] for message in shown] == ["system", "user", "user"]
    assert shown[0]["content"] == "One.\n\nTwo.\nThree." and dialect.shown([system, USER]) == [system, USER]
    assert dialect.shown([USER, system])[0] == system and dialect.shown([USER]) == [USER]
    bare = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert "type f = " in tokenizer.render_chat([USER], tools=dialect.described(bare))


def test_only_what_the_template_asks_for_is_changed() -> None:
    plain = Dialect(knows_tools=True, writes_calls=True)
    assert [message["role"] for message in plain.shown(LOOP)] == ["user", "assistant", "tool", "tool"]
    assert plain.shown(LOOP)[1]["content"] == "Look." and plain.described([{"a": 1}]) == [{"a": 1}]
