"""Parsing answers: every format, any text, in any parts.

Covers: karat.text.tools.olmo,
karat.text.tools.calls, karat.text.tools.events, karat.text.tools.format, karat.text.tools.registry,
karat.text.tools.reasoning, karat.text.tools.hermes, karat.text.tools.llama, karat.text.tools.mistral,
karat.text.tools.pythonic, karat.text.tools.smollm.
"""

import json
import re
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
WRITTEN_ANEW = {"pythonic", "lfm2", "olmo", "qwen-xml", "seed-xml", "atem", "gemma"}  # arguments are no JSON there


def parser(form: str, *, thinks: bool = False, is_open: bool = False, whole_calls: bool = False) -> AnswerParser:
    return AnswerParser(
        THINK if thinks else None, is_open=is_open, form=FORMATS[form], tools=TOOLS, whole_calls=whole_calls
    )


def test_every_format_is_tried() -> None:
    assert WRITERS.keys() == FORMATS.keys()


@given(NAMES, CALLS, st.booleans())
def test_calls_are_found_as_their_family_writes_them(form: str, calls: list[Any], whole_calls: bool) -> None:
    found = parser(form, whole_calls=whole_calls).parse(WRITERS[form](calls))
    assert found.text == "" and [(call.name, json.loads(call.arguments)) for call in found.calls] == calls


@given(NAMES, TEXTS, st.booleans(), st.booleans(), st.booleans(), st.data())
def test_parts_do_not_matter(
    form: str, text: str, thinks: bool, is_open: bool, whole_calls: bool, data: st.DataObject
) -> None:
    kind: Any = {"thinks": thinks, "is_open": is_open, "whole_calls": whole_calls}
    whole, split = parser(form, **kind).parse(text), parser(form, **kind)
    events = [event for part in data.draw(parts(text)) for event in split.feed(part)]
    assert gathered(events + split.finish()) == whole


@given(NAMES, CALLS, st.booleans(), st.data())
def test_parts_of_calls_do_not_matter(form: str, calls: list[Any], whole_calls: bool, data: st.DataObject) -> None:
    text, split = WRITERS[form](calls), parser(form, whole_calls=whole_calls)
    events = [event for part in data.draw(parts(text)) for event in split.feed(part)] + split.finish()
    found = gathered(events)
    assert [(call.name, json.loads(call.arguments)) for call in found.calls] == calls and found.text == ""
    assert all(call.is_whole for call in found.calls)
    _in_order(events)


def _in_order(events: list[Event]) -> None:
    """A call begins with its name, then come its arguments, then its end unless it is cut, and then the next part."""
    current: int | None = None
    num_calls = 0
    for event in events:
        match event:
            case CallBegin(index, _):
                assert index == num_calls
                current, num_calls = index, num_calls + 1
            case CallArguments(index, text):
                assert index == current and text
            case CallEnd(index):
                assert index == current
                current = None
            case Text(text):
                assert text
                current = None


@given(NAMES, TEXTS)
def test_what_is_no_call_is_unchanged(form: str, text: str) -> None:
    found = parser(form).parse(text)
    for call in found.calls:
        assert call.name in TOOLS
        assert not call.is_whole or isinstance(json.loads(call.arguments), dict)
    may_have_headers = FORMATS[form].in_channels and ("<|" in text or "to=" in text)
    if not found.calls and not may_have_headers:
        assert found == ParsedAnswer(text, "", ())


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 01}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": "{}"}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f"}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a":'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": …}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"arguments": {"a": 1}, "name": "other"}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"arguments": {"a": 1}, "name": "f", "x": 1e999}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"arguments": {"a": 1}, "name": "f", "x": 1, "x": 1}\n</tool_call>'),
        ("smollm", "<tool_call>[]</tool_call>"),
        ("llama", 'ToolCall {"name": "f", "parameters": {}}'),
        ("llama", '{"name": "f", "values": {}}'),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral-args", "[TOOL_CALLS]f[ARGS]1"),
        ("pythonic", "[link](https://example.org)"),
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


@given(st.permutations([("name", "f"), ("arguments", {"a": 1}), ("id", 3), ("x", [{"name": "g"}, None])]), st.data())
def test_the_order_of_keys_is_free(keys: list[tuple[str, Any]], data: st.DataObject) -> None:
    text = f"<tool_call>{json.dumps(dict(keys))}</tool_call>B"
    assert parser("hermes").parse(text) == ParsedAnswer("B", "", (ToolCall("f", '{"a": 1}'),))
    cut = data.draw(st.integers(0, len(text)))
    one, other = parser("hermes"), parser("hermes")
    assert gathered(one.feed(text[:cut]) + one.feed(text[cut:]) + one.finish()) == other.parse(text)


def test_white_space_around_calls_is_dropped_and_elsewhere_kept() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parser("hermes").parse(f"  A b \n\n{call}\n ").text == "  A b"
    assert parser("hermes").parse(f"{call}\n\nB\n").text == "\n\nB\n"
    assert parser("llama").parse('{"name": "f", "parameters": {}}; ').text == ""


@pytest.mark.parametrize(
    ("form", "text", "told", "is_whole", "rest"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}', '{"a": 1', False, ""),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": tr', "", False, None),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}, "parameters": {}}', "{", False, '}, "parameters": {}}'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}, "x": 01}', '{"a": 1', False, '}, "x": 01}'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}, "x": "12', '{"a": 1', False, ""),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b\n"}} c', '{"a": "b', False, '\n"}} c'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b", 1}}', '{"a": "b", ', False, "1}}"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b"}} c', '{"a": "b"}', True, " c"),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}', "{}", True, ""),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, x', "{}", True, ", x"),
        ("pythonic", "[f(a=1, a=2)]", '{"a": 1', False, ", a=2)]"),
        ("pythonic", "[f(a='b' 1)]", '{"a": "b"', False, " 1)]"),
    ],
)
def test_a_call_that_is_malformed_after_its_first_value_is_cut_there(
    form: str, text: str, told: str, is_whole: bool, rest: str | None
) -> None:
    made = (ToolCall("f", told, is_whole),) if told else ()
    assert parser(form).parse(text) == ParsedAnswer(text if rest is None else rest, "", made)


def test_a_call_may_follow_one_that_is_cut_at_once() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "b", <tool_call>{"name": "f", "arguments": {}}</tool_call>'
    cut, whole = ToolCall("f", '{"a": "b", ', is_whole=False), ToolCall("f", "{}")
    assert parser("hermes").parse(text) == ParsedAnswer("", "", (cut, whole))


@given(NAMES, TEXTS | st.tuples(CALLS, st.integers(0), TEXTS), st.booleans(), st.data())
def test_what_is_told_is_never_text_however_the_answer_is_split(
    form: str, said: Any, whole_calls: bool, data: st.DataObject
) -> None:
    """Beginnings of calls with other texts after them, too."""
    text = said
    if not isinstance(said, str):
        calls, place, after = said
        written = WRITERS[form](calls)
        text = written[: place % (len(written) + 1)] + after
    split = parser(form, whole_calls=whole_calls)
    events = [event for part in data.draw(parts(text)) for event in split.feed(part)] + split.finish()
    _in_order(events)
    found = gathered(events)
    assert found == parser(form).parse(text)
    pydantic_core = pytest.importorskip("pydantic_core")
    for call in found.calls:
        if call.is_whole:
            assert isinstance(json.loads(call.arguments), dict)
        else:
            with pytest.raises(json.JSONDecodeError):
                json.loads(call.arguments)
            plain = re.sub(r"\\\\|\\u[dD][89a-fA-F]..", "x", call.arguments)  # half a pair is refused by this package
            assert isinstance(pydantic_core.from_json(plain, allow_partial=True), dict)
    halves = any("\\ufffd" in event.text for event in events if isinstance(event, Text | CallArguments))
    if form not in WRITTEN_ANEW and not halves:
        # The others keep what the model wrote: all that was told stands in it, in order and once.
        place = 0
        for event in events:
            if isinstance(event, Text | CallArguments):
                for piece in event.text.split() if isinstance(event, Text) else [event.text]:
                    found_at = text.find(piece, place)
                    assert found_at >= 0, (piece, text[place:])
                    place = found_at + len(piece)


def test_a_call_is_told_as_it_comes_or_when_it_is_whole() -> None:
    pieces = ['<tool_call>\n{"name": "f"', ', "arguments": {"a"', ': "', "b", 'c"', "}", "}", "\n</tool_call>"]
    free, whole = parser("hermes"), parser("hermes", whole_calls=True)
    told = [CallBegin(0, "f"), *(CallArguments(0, text) for text in ('{"a": "', "b", 'c"', "}")), CallEnd(0)]
    by_piece = [[], [], told[:2], [told[2]], [told[3]], [], told[4:], []]
    assert [free.feed(piece) for piece in pieces] == by_piece
    at_once = [CallBegin(0, "f"), CallArguments(0, '{"a": "bc"}'), CallEnd(0)]
    assert [whole.feed(piece) for piece in pieces] == [[]] * 6 + [at_once, []]


@given(NAMES, CALLS)
def test_calls_come_as_they_are_written(form: str, calls: list[Any]) -> None:
    """No more is held back than a number, a word or an escape, and what stands before the first value."""
    found, written = parser(form), WRITERS[form](calls)
    events = [(place, event) for place, char in enumerate(written) for event in found.feed(char)]
    begun = {event.index: place for place, event in events if isinstance(event, CallBegin)}
    ended = {event.index: place for place, event in events if isinstance(event, CallEnd)}
    assert begun.keys() == ended.keys() == set(range(len(calls)))
    for index, (_, arguments) in enumerate(calls):
        texts = [value for value in arguments.values() if isinstance(value, str)]
        if texts and all(isinstance(value, str) for value in arguments.values()):
            assert ended[index] - begun[index] >= sum(map(len, texts))


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
