"""SamplingParams: what is refused, by name, before any work; what is normalised; outputs."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.errors import RequestError
from karat.request import CompletionOutput, RequestOutput, SamplingParams, shown

HUGE = 10**5000  # more digits than Python prints
WRONG: dict[str, list[Any]] = {
    "n": [0, -1, 65, 1.0, True, "1", None, HUGE],
    "temperature": [-0.1, 100.1, math.nan, math.inf, "1", None, True, HUGE],
    "top_k": [-2, 1.5, True, None, 2**31, HUGE],
    "top_p": [0, 0.0, -0.1, 1.1, math.nan, None, HUGE],
    "min_p": [-0.1, 1.1, math.nan, None, HUGE],
    "repetition_penalty": [0, 0.0, -1, 101, math.nan, math.inf, None, HUGE],
    "presence_penalty": [-2.1, 2.1, math.nan, None, HUGE],
    "frequency_penalty": [-2.1, 2.1, math.nan, None, HUGE],
    "logit_bias": [{-1: 1}, {1: 101}, {1: math.nan}, {1.5: 1}, {"1": 1}, {True: 1}, [(1, 1)], None, {HUGE: 1},
                   {1: HUGE}, dict.fromkeys(range(1025), 1)],
    "seed": [-1, 2**63, 1.0, "1", True, HUGE],
    "max_tokens": [0, -1, 1.0, True, 2**31, HUGE],
    "min_tokens": [-1, 1.0, None, True, HUGE],
    "stop": [("",), ("a", 1), 1, {"a"}, ["a"] * 65, ["a" * 1025], None],
    "stop_token_ids": [(-1,), (1.0,), (True,), 5, None, {5}, [2**31], [HUGE], [1] * 1025],
    "include_stop_str_in_output": [0, None, "yes"],
    "ignore_eos": [1, None],
    "skip_special_tokens": [1, None],
    "logprobs": [-1, 65, 1.0, True, HUGE],
    "prompt_logprobs": [-1, 65, 1.0, True, HUGE],
}  # fmt: skip
RIGHT: dict[str, list[Any]] = {
    "n": [1, 64],
    "temperature": [0, 0.0, 1e-300, 100],
    "top_k": [0, -1, 1, 2**31 - 1],
    "top_p": [1e-9, 1, 1.0],
    "min_p": [0, 0.5, 1],
    "repetition_penalty": [1e-9, 1, 100],
    "presence_penalty": [-2, 2.0],
    "frequency_penalty": [-2, 2.0],
    "logit_bias": [{}, {0: -100, 5: 100.0}],
    "seed": [None, 0, 2**63 - 1],
    "max_tokens": [None, 1, 2**31 - 1],
    "min_tokens": [0, 5],
    "stop": ["a", ["a", "b"], ("a",), ()],
    "stop_token_ids": [[], [0, 5], (7,)],
    "include_stop_str_in_output": [True, False],
    "ignore_eos": [True],
    "skip_special_tokens": [False],
    "logprobs": [None, 0, 64],
    "prompt_logprobs": [None, 0, 64],
}


def test_every_field_is_tested() -> None:
    assert set(WRONG) == set(RIGHT) == set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "index"), [(name, i) for name, values in WRONG.items() for i in range(len(values))]
)  # fmt: skip
def test_wrong_values_are_refused_by_name(name: str, index: int) -> None:
    with pytest.raises(RequestError, match=rf"^{name}=.*: expected ") as caught:
        SamplingParams(**{name: WRONG[name][index]})
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(("name", "index"), [(name, i) for name, values in RIGHT.items() for i in range(len(values))])
def test_right_values_are_taken(name: str, index: int) -> None:
    SamplingParams(**{name: RIGHT[name][index]})


def test_other_spellings_become_one() -> None:
    params = SamplingParams(stop="ab", stop_token_ids=[3, 4], top_k=-1)
    assert (params.stop, params.stop_token_ids, params.top_k) == (("ab",), (3, 4), 0)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    SamplingParams(min_tokens=3, max_tokens=3)
    with pytest.raises(RequestError, match="min_tokens=4: expected an integer from 0 to max_tokens=3"):
        SamplingParams(min_tokens=4, max_tokens=3)


def test_the_callers_bias_is_copied() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = math.nan
    assert params.logit_bias == {1: 2.0}


def test_unknown_fields_are_an_error() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(sorted(WRONG)), JSON, max_size=4))
@settings(deadline=None)
def test_anything_at_all_is_taken_or_refused(fields: dict[str, Any]) -> None:
    wrong = {name for name in fields if refusal({name: fields[name]})}
    named = refusal(fields)
    if wrong:
        assert named in wrong
    else:
        assert named in (None, "min_tokens"), "two that do not go together"


def refusal(fields: dict[str, Any]) -> str | None:
    """The field that is refused, if one is."""
    try:
        SamplingParams(**fields)
    except RequestError as error:
        return str(error).partition("=")[0]
    return None


def test_what_came_is_shown_briefly() -> None:
    for value in ("x" * 500, [HUGE], HUGE, {"a": [1] * 500}, ""):
        assert 0 < len(shown(value)) <= 80


def test_a_request_is_finished_when_all_its_choices_are() -> None:
    done, open_ = (CompletionOutput(i, "", (), reason) for i, reason in enumerate(("length", None)))
    assert RequestOutput("r", None, (1,), (done,)).finished
    assert not RequestOutput("r", None, (1,), (done, open_)).finished
