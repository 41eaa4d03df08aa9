"""LFM2's calls: texts between quotes that the model did not escape, values of Python, and lists of JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.text.tools.dialect import written
from karat.text.tools.events import CallArguments, ParsedAnswer, ToolCall
from karat.text.tools.parser import AnswerParser
from karat.text.tools.registry import FORMATS
from tests.text.tools.answers import parts

FORM = FORMATS["lfm2"]
NO_TOOLS: dict[str, Any] = {"f": None, "g": None}


def parser() -> AnswerParser:
    return AnswerParser(form=FORM, tools=NO_TOOLS)


def read(inner: str) -> list[tuple[str, Any]]:
    found = parser().parse(f"<|tool_call_start|>{inner}<|tool_call_end|>")
    assert found.text == "" and all(call.is_whole for call in found.calls)
    return [(call.name, json.loads(call.arguments)) for call in found.calls]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("'It's wet'", "It's wet"),
        ("'the dogs' bowls'", "the dogs' bowls"),
        ("'print('a', 'b')'", "print('a', 'b')"),
        ("'a\nb\tc'", "a\nb\tc"),
        (r"'a\'b\n'", "a'b\n"),
        ("""'a "b" c'""", 'a "b" c'),
        ('''"It's \\"so\\""''', 'It\'s "so"'),
        ("'1', days='2'", "1"),  # nothing tells this from another argument
        ("''", ""),
        ("[1, 2.5, True, None]", [1, 2.5, True, None]),
        ("{'a': [false, \"b\"]}", {"a": [False, "b"]}),
        ("-1e3", -1000.0),
    ],
)
def test_a_value(value: str, expected: Any) -> None:
    (call,) = read(f"[f(a={value})]")
    assert call[1]["a"] == expected
    several = read(f"[f(a={value}, z=1), g(b = {value}), g()]")
    assert [name for name, _ in several] == ["f", "g", "g"]
    assert several[0][1]["a"] == several[1][1]["b"] == expected and several[0][1]["z"] == 1


INNER = st.lists(st.sampled_from(["'", '"', "\n", " ", ",", ")", "]", "b=", "é", "x", "f("]), max_size=10).map("".join)


@given(INNER, st.sampled_from(["'", '"']), st.data())
def test_texts_are_kept_to_the_letter_and_told_as_they_come(inner: str, quote: str, data: st.DataObject) -> None:
    """But for one that holds a quote and the rest of a call."""
    text = f"<|tool_call_start|>[f(a={quote}{inner}{quote}, sure=True)]<|tool_call_end|>"
    split = parser()
    events = [event for part in data.draw(parts(text)) for event in split.feed(part)] + split.finish()
    whole = parser().parse(text)
    assert "".join(e.text for e in events if isinstance(e, CallArguments)) == "".join(c.arguments for c in whole.calls)
    squeezed = "".join(inner.split())
    if not any(quote + end in squeezed for end in (",b=", ",x", ",f", ",xb=", ")]", "),")):
        assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == [("f", {"a": inner, "sure": True})]


def test_a_text_is_told_before_it_ends() -> None:
    events = parser().feed("<|tool_call_start|>[f(a='It's first, ")
    assert "".join(e.text for e in events if isinstance(e, CallArguments)) == '{"a": "It\'s first, '


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ("<|tool_call_start|>[f(a=1)]", "", [ToolCall("f", '{"a": 1}')]),  # the end of the answer stands for the token
        ("<|tool_call_start|>[f(a=1", "", [ToolCall("f", '{"a": 1', is_whole=False)]),
        ("<|tool_call_start|>[f(a='b", "", [ToolCall("f", '{"a": "b', is_whole=False)]),
        ("<|tool_call_start|>[f(a='b', a=1)]", "=1)]", [ToolCall("f", '{"a": "b"', is_whole=False)]),
        ("Hm.\n<|tool_call_start|>[f()]<|tool_call_end|>Now.", "Hm.Now.", [ToolCall("f", "{}")]),
        ('<|tool_call_start|>[{"name": "f", "arguments": {"a": 1}}]<|tool_call_end|>', "", [ToolCall("f", '{"a": 1}')]),
        ("<|tool_call_start|>[h(a=1)]<|tool_call_end|>", None, []),
        ("<|tool_call_start|>[]<|tool_call_end|>", None, []),
        ("<|tool_call_start|>[f(a)]<|tool_call_end|>", None, []),
    ],
)
def test_around_calls(text: str, said: str | None, calls: list[ToolCall]) -> None:
    assert parser().parse(text) == ParsedAnswer(text if said is None else said, "", tuple(calls))


def test_a_call_of_an_earlier_answer_is_written_as_the_models_write_it() -> None:
    text = written(FORM, [("f", {"a": "It's", "b": [True, None, {"c": 1.5}]}), ("g", {})])
    assert text == '<|tool_call_start|>[f(a="It\'s", b=[True, None, {"c": 1.5}]), g()]<|tool_call_end|>'
