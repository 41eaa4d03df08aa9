"""SamplingParams: what is refused, by name, before any work; what is normalised; outputs.

Covers: karat.outputs, karat.request_record.
"""

import copy
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import karat
from karat.engine.remote.messages import ToEngine
from karat.errors import RequestError
from karat.outputs import CompletionOutput, Logprob, RequestOutput
from karat.request import Resume, SamplingParams, StructuredOutputs, shown
from karat.request_record import Request

HUGE = 10**5000  # more digits than Python prints
WRONG: dict[str, list[Any]] = {
    "n": [0, -1, 65, 1.5, True, "1", HUGE],
    "temperature": [-0.1, 100.1, math.nan, math.inf, "1", True, HUGE],
    "top_k": [-2, 1.5, True, 2**31, HUGE],
    "top_p": [-0.1, 1.1, math.nan, HUGE],
    "min_p": [-0.1, 1.1, math.nan, HUGE],
    "repetition_penalty": [0, 0.0, -1, 101, math.nan, math.inf, HUGE],
    "presence_penalty": [-2.1, 2.1, math.nan, HUGE],
    "frequency_penalty": [-2.1, 2.1, math.nan, HUGE],
    "typical_p": [0, -0.1, 1.1, math.nan, "1", HUGE],
    "top_n_sigma": [-0.5, -2, 100.5, math.nan, True, HUGE],
    "xtc_probability": [-0.1, 1.1, math.nan, HUGE],
    "xtc_threshold": [-0.1, 1.1, math.nan, HUGE],
    "repeat_last_n": [-2, 1.5, True, "64", 2**31, HUGE],
    "dry_multiplier": [-0.1, 100.5, math.nan, HUGE],
    "dry_base": [0.99, 100.5, math.nan, HUGE],
    "dry_allowed_length": [-1, 1.5, True, 2**31],
    "dry_penalty_last_n": [-2, 1.5, True, 2**31],
    "dry_sequence_breakers": [("",), ("a", 1), 1, {"a"}, ["a"] * 65, ["a" * 129]],
    "no_repeat_ngram_size": [-1, 1.5, True, 2**31],
    "bad_words": [("",), ("a", 1), 1, {"a"}, ["a"] * 1025, ["a" * 129]],
    "bad_words_ids": [[[]], [5], 5, "ab", [[-1]], [[1.5]], [[True]], [[2**31]], [[1]] * 1025, [[1] * 129], [{1}]],
    "logit_bias": [
        {-1: 1},
        {1: 101},
        {1: math.nan},
        {1.5: 1},
        {"x": 1},
        {"-1": 1},
        {True: 1},
        [(1, 1, 1)],
        [1],
        {HUGE: 1},
        {1: HUGE},
        dict.fromkeys(range(1025), 1),
    ],
    "seed": [-2, 2**63, 1.5, "1", True, HUGE],
    "max_tokens": [0, -2, 1.5, True, 2**31, HUGE],
    "min_tokens": [-1, 1.5, True, HUGE],
    "stop": [("a", 1), 1, {"a"}, ["a"] * 65, ["a" * 1025]],
    "stop_token_ids": [(-1,), (1.5,), (True,), 5, {5}, [2**31], [HUGE], [1] * 1025],
    "include_stop_str_in_output": [0, "yes"],
    "ignore_eos": [1],
    "skip_special_tokens": [1],
    "explain": [1],
    "logprobs": [-1, 65, 1.5, True, HUGE],
    "prompt_logprobs": [-1, 65, 1.5, True, HUGE],
    "allowed_token_ids": [(), [], (-1,), (1.5,), (True,), 5, {5}, [2**31], [HUGE], [1] * 1025],
    "structured_outputs": ["json", True, [1], 5],
}
RIGHT: dict[str, list[Any]] = {
    "n": [1, 64],
    "temperature": [0, 0.0, 1e-300, 100],
    "top_k": [0, -1, 1, 2**31 - 1],
    "top_p": [0, 0.0, 1e-9, 1, 1.0],
    "min_p": [0, 0.5, 1],
    "repetition_penalty": [1e-9, 1, 100],
    "presence_penalty": [-2, 2.0],
    "frequency_penalty": [-2, 2.0],
    "typical_p": [1e-9, 0.9, 1],
    "top_n_sigma": [0, -1, -1.0, 1.5, 100],
    "xtc_probability": [0, 0.5, 1],
    "xtc_threshold": [0, 0.5, 1],
    "repeat_last_n": [None, -1, 0, 64],
    "dry_multiplier": [0, 0.8],
    "dry_base": [1, 1.75],
    "dry_allowed_length": [0, 2],
    "dry_penalty_last_n": [-1, 0, 1024],
    "dry_sequence_breakers": [(), [], "\n", ["a", "<|im_end|>"]],
    "no_repeat_ngram_size": [0, 3],
    "bad_words": [None, (), "no", ["a", "b c"]],
    "bad_words_ids": [None, [], [[5], [1, 2]], ((5,), [1])],
    "logit_bias": [{}, {0: -100, 5: 100.0}],
    "seed": [None, -1, 0, 2**63 - 1],
    "max_tokens": [None, -1, 1, 2**31 - 1],
    "min_tokens": [0, 5],
    "stop": ["a", ["a", "b"], ("a",), (), None],
    "stop_token_ids": [[], None, [0, 5], (7,)],
    "include_stop_str_in_output": [True, False],
    "ignore_eos": [True],
    "skip_special_tokens": [False],
    "explain": [True],
    "logprobs": [None, 0, 64],
    "prompt_logprobs": [None, 0, 64],
    "allowed_token_ids": [None, [0, 5], (7,)],
    "structured_outputs": [None, StructuredOutputs(regex="a"), {"choice": ["a", "b"]}, {"json": {}}, {"grammar": "a"}],
}


def test_every_field_is_tested() -> None:
    assert set(WRONG) == set(RIGHT) == set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize(("name", "index"), [(name, i) for name, values in WRONG.items() for i in range(len(values))])
def test_wrong_values_are_refused_by_name(name: str, index: int) -> None:
    with pytest.raises(RequestError, match=rf"^{name}(\[\d\])?=.*: expected ") as caught:
        SamplingParams(**{name: WRONG[name][index]})
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(("name", "index"), [(name, i) for name, values in RIGHT.items() for i in range(len(values))])
def test_right_values_are_taken(name: str, index: int) -> None:
    SamplingParams(**{name: RIGHT[name][index]})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "nothing"),
        ({"json": {}, "regex": "a"}, "json, regex"),
        ({"json": {"a": object()}}, "json"),
        ({"json": 5}, "json=5"),
        ({"regex": ""}, "regex"),
        ({"regex": 5}, "regex"),
        ({"choice": []}, "choice"),
        ({"choice": "ab"}, "choice"),
        ({"choice": ["a", 5]}, "choice"),
        ({"grammar": "a" * 70000}, "grammar has 70000 characters"),
        ({"jsn": {}}, "did you mean json"),
        ({"json_object": True}, '"type": "object"'),
        ({"whitespace_pattern": " "}, "white space is bounded"),
    ],
)
def test_structured_outputs_are_exactly_one_thing(fields: dict[str, Any], named: str) -> None:
    ways = [lambda: StructuredOutputs(**fields), lambda: SamplingParams(structured_outputs=fields)]
    for make in ways[: 2 if fields else 1]:
        with pytest.raises(RequestError, match=named):
            make()


def test_empty_texts_and_forms_are_none() -> None:
    for said in ({"stop": ""}, {"stop": [""]}, {"structured_outputs": {}}, {"structured_outputs": {"json": None}}):
        assert SamplingParams(**said) == SamplingParams(), said
    assert SamplingParams(stop=["", "a"]).stop == ("a",)


def test_the_id_that_is_none_is_named() -> None:
    for name in ("stop_token_ids", "allowed_token_ids"):
        with pytest.raises(RequestError, match=rf"^{name}\[1\]=-1: expected a token id, an integer from 0"):
            SamplingParams(**{name: [5, -1]})


def test_other_spellings_become_one() -> None:
    params = SamplingParams(stop="ab", stop_token_ids=[3, 4], top_k=-1)
    assert (params.stop, params.stop_token_ids, params.top_k) == (("ab",), (3, 4), 0)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    nothing: dict[str, Any] = dict.fromkeys(SamplingParams.__dataclass_fields__)
    assert SamplingParams(**nothing) == SamplingParams()
    form: Any = {"regex": "a", "whitespace_pattern": None}
    assert SamplingParams(structured_outputs=form) == SamplingParams(structured_outputs=StructuredOutputs(regex="a"))


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    SamplingParams(min_tokens=3, max_tokens=3)
    with pytest.raises(RequestError, match="min_tokens=4: expected an integer from 0 to max_tokens=3"):
        SamplingParams(min_tokens=4, max_tokens=3)


def test_the_callers_bias_is_copied() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = math.nan
    assert params.logit_bias == {1: 2.0}


def test_unknown_fields_are_refused_with_advice() -> None:
    for name, advice in {
        "best_of": "has no best_of; ask for n",
        "max_token": "did you mean max_tokens?",
        "zzz": "expected one of",
        "detokenize": "always",
        "truncate_prompt_tokens": "token ids",
        "guided_decoding": "structured_outputs has its place",
        "length_penalty": "beam search",
        "use_beam_search": "cumulative_logprob",
        "flat_logprobs": "one form",
    }.items():
        with pytest.raises(RequestError, match=f"SamplingParams has no {name}; ") as caught:
            SamplingParams(**{name: 2})
        assert advice in str(caught.value)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize("value", [-1, 65])
def test_more_log_probabilities_than_there_are_name_what_has_them(name: str, value: int) -> None:
    with pytest.raises(RequestError, match=f"{name}={value}: expected None or an integer from 0 to 64; LLM.logits"):
        SamplingParams(**{name: value})


def test_a_clone_is_equal() -> None:
    params = SamplingParams(stop="a", logit_bias={1: 2.0}, seed=5)
    assert params.clone() == params == copy.deepcopy(params) and params.clone() is not params


def test_the_logprobs_of_a_choice_are_summed() -> None:
    assert CompletionOutput(0, "", (1, 2), "length").cumulative_logprob is None
    logprobs = ({1: Logprob(-0.5, 1, "a"), 9: Logprob(-3.0, 2, "x")}, {2: Logprob(-0.25, 1, "b")})
    assert CompletionOutput(0, "ab", (1, 2), "length", logprobs=logprobs).cumulative_logprob == -0.75


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
        return str(error).partition("=")[0].partition("[")[0]  # of a list's element, the list's
    return None


def test_what_came_is_shown_briefly() -> None:
    for value in ("x" * 500, [HUGE], HUGE, {"a": [1] * 500}, ""):
        assert 0 < len(shown(value)) <= 80


@given(
    st.recursive(
        st.none() | st.integers() | st.text("ab", max_size=100) | st.binary(max_size=100),
        lambda inner: (
            st.lists(inner, max_size=100) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner)
        ),
        max_leaves=100,
    )
)
def test_what_is_shown_begins_as_the_whole_does(value: Any) -> None:
    whole = repr(value)
    assert shown(value) == (whole if len(whole) <= 80 else whole[:79] + "…")


def test_what_is_not_shown_is_not_printed() -> None:
    """15 MB of a request were printed to show 79 characters."""
    printed = []

    class Item:
        def __repr__(self) -> str:
            printed.append(self)
            return "item"

    items = [Item() for _ in range(10_000)]
    assert shown([items, {"a": items}]).startswith("[[item, item")
    assert len(printed) <= 2 * 81
    assert shown("a" * 10_000_000) == "'" + "a" * 78 + "…"


def test_a_request_is_finished_when_all_its_choices_are() -> None:
    done, open_ = (CompletionOutput(i, "", (), reason) for i, reason in enumerate(("length", None)))
    assert RequestOutput("r", None, (1,), (done,)).finished
    assert not RequestOutput("r", None, (1,), (done, open_)).finished


def test_the_package_lists_its_public_names() -> None:
    assert dir(karat) == sorted(karat.__all__) and "LLM" in dir(karat) and "import_module" not in dir(karat)


def test_a_request_goes_to_another_process_as_it_is() -> None:
    """Every field, none of them at its default."""
    params = SamplingParams(logit_bias={3: 1.5}, stop="x", bad_words_ids=[[1, 2]], structured_outputs={"regex": "a+"})
    asked = Request(
        "name",
        (1, 2),
        params,
        2**63 - 1,
        prompt="a text",
        end_token_ids=frozenset({3, 4}),
        salt="a tenant",
        shares=False,
        priority=-2,
        resume=Resume((4, 5), choice=1),
        cache_point=2,
        tells_progress=True,
        receipt="digests",
        is_watched=False,
    )
    plain = Request("", (), SamplingParams(), 0)
    assert all(getattr(asked, name) != getattr(plain, name) for name in Request.__struct_fields__)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=ToEngine) == asked
