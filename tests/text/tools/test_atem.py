"""ATEM: Muse Glimmer's answers of messages to somebody, as they are read, held and given back.

Covers: karat.text.tools.atem, karat.text.tools.channels, karat.text.tools.channel_grammar.
"""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.request import StructuredOutputs
from karat.server.asking.variables import Effort, with_efforts
from karat.text import Tokenizer
from karat.text.grammar import Grammar, GrammarCompiler
from karat.text.tools.calling import Calling, Offer
from karat.text.tools.dialect import Dialect, dialect_of
from karat.text.tools.events import ParsedAnswer, Reasoning, Text, ToolCall, gathered
from karat.text.tools.parser import AnswerParser
from karat.text.tools.registry import FORMATS
from tests.text.tools.models import byte_tokenizer

FORM = FORMATS["atem"]
MESSAGES = ["<|start|>", "<|message|>", "<|eom|>", "<|eot|>"]
NEXT = "<|eom|><|start|>assistant"
SELF, USER = " to=self<|message|>", " to=user<|message|>"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "s": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = {"f": SCHEMA, "weather.get": None}


def call(name: str, *given: tuple[str, str], to: str | None = None) -> str:
    parameters = "".join(f'<atem:parameter name="{key}">{text}</atem:parameter>\n' for key, text in given)
    inner = f'<atem:invoke name="{name}">\n{parameters}</atem:invoke>\n'
    return f" to={to or name}<|message|><atem:function_calls>\n{inner}</atem:function_calls>"


ONE = call("f", ("a", "1"))
WHOLE = ToolCall("f", '{"a": 1}')


def parsed(text: str, begun: str = "") -> ParsedAnswer:
    return AnswerParser(form=FORM, tools=TOOLS, begun=begun).parse(text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (f"{SELF}Hm.{NEXT}{USER}Yes.<|eot|>", ParsedAnswer("Yes.", "Hm.", ())),
        (f"{SELF}A{NEXT}{USER}B{NEXT}{SELF}C{NEXT}{USER}D", ParsedAnswer("B\n\nD", "A\n\nC", ())),
        (f"{SELF}Hm.{NEXT}{ONE}<|eot|>", ParsedAnswer("", "Hm.", (WHOLE,))),
        (f"{ONE}{NEXT}{call('weather.get')}<|eot|>", ParsedAnswer("", "", (WHOLE, ToolCall("weather.get", "{}")))),
        (f"{USER}Look:{NEXT}{ONE}", ParsedAnswer("Look:", "", (WHOLE,))),
        (call("f", ("a", "1"), ("s", "1")), ParsedAnswer("", "", (ToolCall("f", '{"a": 1, "s": "1"}'),))),
        (call("f", ("s", '{"b": [1]}')), ParsedAnswer("", "", (ToolCall("f", '{"s": "{\\"b\\": [1]}"}'),))),
        (call("f", ("s", "\n x \n")), ParsedAnswer("", "", (ToolCall("f", '{"s": "\\n x \\n"}'),))),
        (call("f", ("s", "</atem:parameter>")), ParsedAnswer("", "", (ToolCall("f", '{"s": "</atem:parameter>"}'),))),
        (call("weather.get", ("x", "[1, 2]")), ParsedAnswer("", "", (ToolCall("weather.get", '{"x": [1, 2]}'),))),
        (f"{USER}a < b <|eom|> c <|start|> d <|mess", ParsedAnswer("a < b <|eom|> c <|start|> d <|mess", "", ())),
        (f"{USER} a \n", ParsedAnswer(" a \n", "", ())),
        ("Hello.", ParsedAnswer("Hello.", "", ())),
        ("to be", ParsedAnswer("to be", "", ())),
        (" to=se", ParsedAnswer("", "", ())),
        (f"{USER}Yes.<|eom|><|start|>assis", ParsedAnswer("Yes.", "", ())),
        (call("x"), ParsedAnswer(call("x"), "", ())),
    ],
)
def test_answers_are_read(text: str, answer: ParsedAnswer) -> None:
    assert parsed(text) == answer


@given(st.text(alphabet="ab<|>/ \n", max_size=30), st.integers(1, 9))
def test_parts_do_not_matter(said: str, size: int) -> None:
    text = f"{SELF}{said}{NEXT}{ONE}{NEXT}{USER}{said}<|eot|>"
    parser = AnswerParser(form=FORM, tools=TOOLS)
    events = [event for start in range(0, len(text), size) for event in parser.feed(text[start : start + size])]
    events += parser.finish()
    assert gathered(events) == parsed(text)
    assert all(event.text for event in events if isinstance(event, Text | Reasoning))


MARKED = byte_tokenizer(special=["</s>", *MESSAGES])
SPELLED = byte_tokenizer(special=["</s>"])  # marks are texts
COMPILERS = {id(each): GrammarCompiler(each, each.vocab_size) for each in (MARKED, SPELLED)}
END = 256
OFFERS = (Offer("f", SCHEMA), Offer("get_weather"))
WORDS = StructuredOutputs(choice=["cat", "dog"])
PROMPT = "<|start|>user<|message|>Hi<|eot|><|start|>assistant"


def held(tokenizer: Tokenizer, calling: Calling, answer: StructuredOutputs | None = None, begun: str = "") -> Grammar:
    form = calling.structured(Dialect(knows_tools=True, form=FORM), PROMPT + begun, answer)
    assert form is not None
    return COMPILERS[id(tokenizer)].compile(form)


def takes(grammar: Grammar, tokenizer: Tokenizer, text: str) -> bool:
    """Whether the whole of `text` is an answer."""
    state = grammar.begin([END])
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        if not state.fitting([])[token_id]:
            return False
        state.push(token_id)
    return state.may_end


SAID = {  # what the model says, and what it is
    ONE: "call",
    f"{SELF}Hm.{NEXT}{ONE}": "call",
    f"{USER}Look.{NEXT}{ONE}": "spoken call",
    f"{ONE}{NEXT}{ONE}": "two calls",
    f"{USER}cat": "answer",
    f"{SELF}Hm.{NEXT}{USER}cat": "answer",
    f"{USER}A bird.": "free answer",
    "": "",
    "cat": "",
    f"{SELF}Hm.": "",
    f"{USER}cat{NEXT}{SELF}Hm.": "",
    call("g"): "",
    call("f", ("a", "1"), to="g"): "",
    call("f", ("a", "one")): "",
}


@pytest.mark.parametrize("tokenizer", [MARKED, SPELLED], ids=["special", "text"])
def test_what_each_grammar_takes(tokenizer: Tokenizer) -> None:
    called, answered = {"call", "spoken call", "two calls"}, {"answer", "free answer"}
    grammars: list[tuple[Calling, StructuredOutputs | None, set[str]]] = [
        (Calling(OFFERS, must_call=True), None, called),
        (Calling(OFFERS, must_call=True, single=True), None, called - {"two calls"}),
        (Calling((Offer("f", SCHEMA, strict=True),)), None, called | answered),
        (Calling((Offer("f", SCHEMA, strict=True),)), WORDS, {"call", "two calls", "answer"}),
        (Calling(), WORDS, {"answer"}),
    ]
    for calling, answer, kinds in grammars:
        grammar = held(tokenizer, calling, answer)
        for text, kind in SAID.items():
            assert takes(grammar, tokenizer, text) == (kind in kinds), (text, kinds)


@pytest.mark.parametrize("tokenizer", [MARKED, SPELLED], ids=["special", "text"])
def test_parameters_of_any_name_may_be_called(tokenizer: Tokenizer) -> None:
    """Of a tool whose schema is not kept to; the quote behind a name is no part of it."""
    grammar = held(tokenizer, Calling(OFFERS))
    assert takes(grammar, tokenizer, f"{USER}Look.{NEXT}{call('f', ('city', 'Oslo'), ('n', '1'))}")


def test_a_message_that_the_prompt_opened_goes_on() -> None:
    for tokenizer in (MARKED, SPELLED):
        assert takes(held(tokenizer, Calling(), WORDS, USER), tokenizer, "cat")
        assert takes(held(tokenizer, Calling(), WORDS, SELF), tokenizer, f"Hm.{NEXT}{USER}cat")
        assert not takes(held(tokenizer, Calling(), WORDS, USER), tokenizer, "bird")


@given(st.sampled_from([MARKED, SPELLED]), st.booleans(), st.integers(0))
def test_whatever_is_drawn_is_read_as_it_was_held(tokenizer: Tokenizer, must_call: bool, seed: int) -> None:
    strict = (Offer("f", SCHEMA, strict=True),)
    state = held(tokenizer, Calling(strict, must_call)).begin([END])
    rng, ids = random.Random(seed), list[int]()
    likely = [tokenizer.encode(text, add_special_tokens=False)[0] for text in [*MESSAGES, *"<>1a"]]
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
    found = AnswerParser(form=FORM, tools=TOOLS).parse(tokenizer.decode(ids, skip_special_tokens=False))
    assert all({"a"} <= json.loads(each.arguments).keys() <= {"a", "s"} for each in found.calls)
    assert found.calls or not must_call


CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "Hello"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Hm.",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "s": "x"}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "done"},
]


@pytest.fixture
def released(data_dir: Any) -> Tokenizer:
    source = (data_dir / "templates" / "muse-glimmer.jinja").read_text(encoding="utf-8")
    return byte_tokenizer(source, special=MESSAGES)


def test_the_released_template_writes_what_is_read(released: Tokenizer) -> None:
    dialect = dialect_of(released)
    assert (dialect.form, dialect.knows_tools, dialect.writes_calls) == (FORM, True, True)
    assert dialect.reasons and dialect.hides_marks and not dialect.arguments_are_text
    text = released.render_chat(dialect.shown(CALLED))
    said = text.split("<|start|>user<|message|>Hello<|eot|><|start|>assistant", 1)[1]
    answer, rest = said.split("<|eot|>", 1)
    assert parsed(answer) == ParsedAnswer("", "Hm.", (ToolCall("f", '{"a": 1, "s": "x"}'),))
    assert '<|start|>tool f<|message|><tool_output name="f">\ndone\n</tool_output><|eot|>' in rest
    assert dialect.begun(text) == "" and dialect.begun(text + USER) == USER


def test_an_effort_is_the_strength_of_reasoning(released: Tokenizer) -> None:
    variables, unheeded = with_efforts({}, [Effort("reasoning_effort", "low")], dialect_of(released))
    assert variables == {"reasoning_strength": "low"} and not unheeded
    assert "Reasoning strength: low." in released.render_chat(CALLED[:1], **variables)
