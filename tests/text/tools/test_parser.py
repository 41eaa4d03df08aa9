"""Parsing answers: every format, any text, in any parts.

Covers: karat.text.tools.calls, karat.text.tools.events, karat.text.tools.format, karat.text.tools.registry,
karat.text.tools.reasoning, karat.text.tools.hermes, karat.text.tools.llama, karat.text.tools.mistral,
karat.text.tools.pythonic, karat.text.tools.smollm.
"""

import json
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.text.tools.events import CallArguments, CallBegin, CallEnd, Event, ParsedAnswer, Text, ToolCall, gathered
from karat.text.tools.parser import AnswerParser
from karat.text.tools.reasoning import TAGS
from karat.text.tools.registry import FORMATS
from tests.text.tools.answers import CALLS, TEXTS, TOOLS, WRITERS, parts

NAMES = st.sampled_from(sorted(FORMATS))
THINK = TAGS[0]


def parser(form: str, *, thinks: bool = False, is_open: bool = False, is_forced: bool = False) -> AnswerParser:
    return AnswerParser(
        THINK if thinks else None, is_open=is_open, form=FORMATS[form], tools=TOOLS, is_forced=is_forced
    )


def test_every_format_is_tried() -> None:
    assert WRITERS.keys() == FORMATS.keys()


@given(NAMES, CALLS, st.booleans())
def test_calls_are_found_as_their_family_writes_them(form: str, calls: list[Any], is_forced: bool) -> None:
    found = parser(form, is_forced=is_forced).parse(WRITERS[form](calls))
    assert found.text == "" and [(call.name, json.loads(call.arguments)) for call in found.calls] == calls


@given(NAMES, TEXTS, st.booleans(), st.booleans(), st.booleans(), st.data())
def test_parts_do_not_matter(
    form: str, text: str, thinks: bool, is_open: bool, is_forced: bool, data: st.DataObject
) -> None:
    kind: Any = {"thinks": thinks, "is_open": is_open, "is_forced": is_forced}
    whole, split = parser(form, **kind).parse(text), parser(form, **kind)
    events = [event for part in data.draw(parts(text)) for event in split.feed(part)]
    assert gathered(events + split.finish()) == whole


@given(NAMES, CALLS, st.booleans(), st.data())
def test_parts_of_calls_do_not_matter(form: str, calls: list[Any], is_forced: bool, data: st.DataObject) -> None:
    text, split = WRITERS[form](calls), parser(form, is_forced=is_forced)
    events = [event for part in data.draw(parts(text)) for event in split.feed(part)] + split.finish()
    found = gathered(events)
    assert [(call.name, json.loads(call.arguments)) for call in found.calls] == calls and found.text == ""
    _in_order(events)


def _in_order(events: list[Event]) -> None:
    """A call begins with its name, then come its arguments, then its end, and then the next call."""
    current: int | None = None
    num_calls = 0
    for event in events:
        match event:
            case CallBegin(index, _):
                assert current is None and index == num_calls
                current, num_calls = index, num_calls + 1
            case CallArguments(index, text):
                assert index == current and text
            case CallEnd(index):
                assert index == current
                current = None
            case Text(text):
                assert current is None and text
    assert current is None


@given(NAMES, TEXTS)
def test_what_is_no_call_is_unchanged(form: str, text: str) -> None:
    found = parser(form).parse(text)
    for call in found.calls:
        assert call.name in TOOLS and isinstance(json.loads(call.arguments), dict)
    if not found.calls:
        assert found == ParsedAnswer(text, "", ())


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 01}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": "{}"}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f"}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {}, "parameters": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": "line\nend"}}\n</tool_call>'),
        ("smollm", "<tool_call>[]</tool_call>"),
        ("llama", 'ToolCall {"name": "f", "parameters": {}}'),
        ("llama", '{"name": "f", "values": {}}'),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}'),
        ("mistral-args", "[TOOL_CALLS]f[ARGS]1"),
        ("pythonic", "[link](https://example.org)"),
        ("pythonic", "[f(a=1, a=2)]"),
        ("pythonic", "[f(a=(1, 2))]"),
        ("pythonic", "[]"),
    ],
)
def test_malformed_calls_are_text(form: str, text: str) -> None:
    assert parser(form).parse(text) == ParsedAnswer(text, "", ())


def test_one_malformed_call_of_several() -> None:
    good, bad = '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "<tool_call>{x}</tool_call>"
    assert parser("hermes").parse(f"A\n{good}\n{bad} \n{good}\n") == ParsedAnswer(
        f"A\n{bad}", "", (ToolCall("f", "{}"),) * 2
    )


def test_white_space_around_calls_is_dropped_and_elsewhere_kept() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parser("hermes").parse(f"  A b \n\n{call}\n ").text == "  A b"
    assert parser("hermes").parse(f"{call}\n\nB\n").text == "\n\nB\n"
    assert parser("llama").parse('{"name": "f", "parameters": {}}; ').text == ""


def test_a_call_is_told_when_it_is_whole_and_with_a_grammar_as_it_comes() -> None:
    pieces = ['<tool_call>\n{"name": "f"', ', "arguments": {"a": ', '"b', 'c"}}', "\n</tool_call>"]
    free, forced = parser("hermes"), parser("hermes", is_forced=True)
    arguments = [CallArguments(0, part) for part in ('{"a": ', '"b', 'c"}')]
    whole: list[Event] = [CallBegin(0, "f"), *arguments, CallEnd(0)]
    assert [free.feed(piece) for piece in pieces] == [[], [], [], [], whole]
    assert [forced.feed(piece) for piece in pieces] == [[event] for event in whole[:3]] + [whole[3:], []]


def test_a_forced_call_that_is_cut_keeps_its_part() -> None:
    found = parser("hermes", is_forced=True)
    events = found.feed('<tool_call>\n{"name": "f", "arguments": {"a": [1') + found.finish()
    assert gathered(events) == ParsedAnswer("", "", (ToolCall("f", '{"a": [1'),)) and CallEnd(0) not in events


@pytest.mark.parametrize(
    ("text", "is_open", "reasoning", "answer"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", False, "Hm.", "Yes."),
        (" \n<think> a b </think>c", False, "a b", "c"),
        ("Hm, <b.\n</think>\n\nYes. </think>", True, "Hm, <b.", "Yes. </think>"),
        ("Hm </thi", True, "Hm </thi", ""),
        ("Hm </th </think>", True, "Hm </th", ""),
        ("Hm <</think>x", True, "Hm <", "x"),
        ("<think>never closed ", False, "never closed", ""),
        ("<think></think>Yes", False, "", "Yes"),
        ("A <think>b</think>", False, "", "A <think>b</think>"),
        (" <thin", False, "", " <thin"),
        ("  ", False, "", "  "),
        ("", True, "", ""),
        ('<think><tool_call>{"name": "f", "arguments": {}}</tool_call></think>B', False, None, "B"),
    ],
)
def test_reasoning_is_parted_from_the_answer(text: str, is_open: bool, reasoning: str | None, answer: str) -> None:
    found = parser("hermes", thinks=True, is_open=is_open).parse(text)
    assert found.text == answer and found.calls == ()
    assert reasoning is None or found.reasoning == reasoning


def test_without_tags_nothing_is_reasoning() -> None:
    text = "<think>\nHm.\n</think>\n\nYes."
    assert AnswerParser().parse(text) == ParsedAnswer(text, "", ())


def lines_run(form: str, text: str) -> int:
    """Lines of this package that run while `text` is parsed in parts of one character."""
    num = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal num
        if "karat/text/tools" not in frame.f_code.co_filename.replace("\\", "/"):
            return None
        num += event == "line"
        return count

    before, found = sys.gettrace(), parser(form, thinks=True)
    sys.settrace(count)
    try:
        for char in text:
            found.feed(char)
        found.finish()
    finally:
        sys.settrace(before)
    return num


@pytest.mark.parametrize(
    ("form", "begin", "repeated"),
    [
        ("hermes", "", "<tool_call>"),
        ("hermes", "", "<tool_cal"),
        ("hermes", "", " "),
        ("hermes", "", '<tool_call>{"name": "f", "arguments": {"a": "'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "', "b"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ', "[1, "),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ', "1"),
        ("hermes", "<think>", " </think"),
        ("hermes", "<think>", " "),
        ("llama", "", '{"name": "f", "parameters": {}}; '),
        ("mistral", "[TOOL_CALLS][", '{"name": "f", "arguments": {}}, '),
        ("mistral-args", "", "[TOOL_CALLS]f[ARGS]{"),
        ("pythonic", "[f(a=", "['a', "),
        ("pythonic", "[", "f(a=1), "),
    ],
)
def test_the_work_is_linear(form: str, begin: str, repeated: str) -> None:
    num = 1200 // len(repeated)
    once, twice = (lines_run(form, begin + repeated * count) for count in (num, 2 * num))
    assert once > 400 and twice < 2.1 * once
