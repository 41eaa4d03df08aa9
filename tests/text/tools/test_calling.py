"""Which tools may be called, and when an answer needs a grammar for it. That all doors agree: tests/server."""

import json
from typing import Any

import pytest

from karat.errors import RequestError
from karat.request import StructuredOutputs
from karat.text.tools.calling import Calling, Offer
from karat.text.tools.dialect import Dialect
from karat.text.tools.registry import FORMATS

A, B = Offer("a", {"type": "object"}), Offer("b")
STRICT = Offer("s", {"properties": {}}, strict=True)
HERMES = Dialect(True, FORMATS["hermes"])
ANSWER = StructuredOutputs(regex="a+")


def chosen(*offers: Offer, choice: Any = "auto", parallel: bool = True, **given: Any) -> Calling:
    return Calling.chosen(offers, choice, parallel=parallel, **given)


def test_a_tool_that_is_named_is_called_once() -> None:
    assert chosen(A, B, choice=("b",)) == Calling((B,), must_call=True, single=True, is_part=True)
    assert chosen(A, B, choice="required") == Calling((A, B), must_call=True)
    assert chosen(A, B, choice="required", parallel=False) == Calling((A, B), must_call=True, single=True)


def test_of_the_tools_some_may_be_allowed() -> None:
    assert chosen(A, B, allowed=["b"]) == Calling((B,), is_part=True)
    assert chosen(A, B, choice="required", allowed=["b"]) == Calling((B,), must_call=True, is_part=True)
    assert chosen(A, B, allowed=["b", "a"]) == chosen(A, B)
    assert chosen(A, B, choice="none") == chosen() == Calling()


@pytest.mark.parametrize("how", [{"choice": ("c",)}, {"allowed": ["c"]}, {"choice": "required", "allowed": []}])
def test_a_choice_that_cannot_be_kept_to(how: Any) -> None:
    with pytest.raises(RequestError, match="tool_choice"):
        chosen(A, B, **how)


def test_an_answer_needs_a_grammar_only_where_it_is_bound() -> None:
    assert chosen(A, B).structured(HERMES, "") is None
    assert Calling().structured(HERMES, "", ANSWER) is ANSWER
    for bound, tools in (
        (chosen(A, STRICT), [None, {"properties": {}, "additionalProperties": False}]),
        (chosen(A, B, parallel=False), [None, None]),
        (chosen(A, B, allowed=["a"]), [None]),
        (chosen(A, B, choice="required"), [{"type": "object"}, {"properties": {}}]),
    ):
        form = bound.structured(HERMES, "")
        assert form is not None and form.tool_calls is not None
        assert [tool["parameters"] for tool in json.loads(form.tool_calls)["tools"]] == tools
    for bound, answers in ((chosen(A), True), (chosen(A, choice="required"), False)):
        form = bound.structured(HERMES, "", ANSWER)
        assert form is not None and form.tool_calls is not None
        assert ("answer" in json.loads(form.tool_calls)) == answers, "a call that must come has no other form"


def test_texts_show_marks_that_are_special_tokens() -> None:
    marked, thinking = (
        Dialect(True, FORMATS["hermes"], hides_marks=True),
        Dialect(tags=("<t>", "</t>"), hides_marks=True),
    )
    assert chosen(A).shows_marks(marked) and Calling().shows_marks(thinking)
    assert not Calling().shows_marks(marked) and not chosen(A).shows_marks(HERMES)
