"""The sampler against a naive oracle in plain Python, against transformers, and against the laws of chance."""

import math
import random
from collections import Counter
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.engine.choosing import sampler
from karat.engine.choosing.bad_words import Words
from karat.engine.choosing.explain import explained
from karat.errors import NumericsError, RequestError
from karat.request import SamplingParams
from tests.support.drawn import examples

VOCAB = 12


def choose(logits: Any, params: SamplingParams, token_ids: Any = (0, 1), **others: Any) -> int:
    arguments = {"prompt_len": len(token_ids), "seed": 0, "choice": 0} | others
    return sampler.choose(np.array(logits, np.float32), params, token_ids=token_ids, **arguments)


def filtered(scores: Any, params: SamplingParams) -> np.ndarray:
    """Weights [vocab] of what is left, 0 for the rest."""
    token_ids, weights = sampler.candidates(np.array(scores, np.float64), params)
    assert (np.diff(token_ids) > 0).all()
    full = np.zeros(len(scores))
    full[token_ids] = weights
    return full


# A few distinct values, so that ties are common.
LOGITS = st.lists(st.sampled_from([-4.0, -1.5, 0.0, 0.25, 0.5, 3.0, 9.0]), min_size=VOCAB, max_size=VOCAB)
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 1e-3, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 3, 7, VOCAB, 99]),
    top_p=st.sampled_from([1e-6, 0.3, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    top_n_sigma=st.sampled_from([0.0, 0.0, 0.4, 1.5]),
    typical_p=st.sampled_from([1.0, 1.0, 0.2, 0.7]),
    repeat_last_n=st.sampled_from([None, -1, 0, 1, 4]),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.7]),
    presence_penalty=st.sampled_from([0.0, 1.3, -0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -1.1]),
    logit_bias=st.sampled_from([{}, {0: 5.0}, {3: -100, 4: 1.25}]),
)


def oracle_scores(logits: list[float], params: SamplingParams, token_ids: list[int], prompt_len: int) -> list[float]:
    recent, last_n = token_ids, params.repeat_last_n
    if last_n is not None:
        recent = [t for i, t in enumerate(reversed(token_ids)) if i < last_n or last_n == -1]
    output = Counter(token_ids[prompt_len:] if last_n is None else recent)
    scores = []
    for token_id, logit in enumerate(logits):
        score = logit + params.logit_bias.get(token_id, 0)
        if token_id in recent:
            p = params.repetition_penalty
            score = score / p if score > 0 else score * p
        score -= params.frequency_penalty * output[token_id]
        score -= params.presence_penalty if output[token_id] else 0
        scores.append(score)
    return scores


def oracle_probabilities(scores: list[float], params: SamplingParams) -> dict[int, float]:
    """Token id to probability of what is left to draw from. exp is NumPy's: rounding must not decide what is kept."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    if params.temperature == 0:
        return {order[0]: 1.0}
    if params.top_n_sigma:
        least = max(scores) - params.top_n_sigma * float(np.std(scores))
        order = [i for i in order if scores[i] >= least - 1e-12]
    if params.top_k:
        order = order[: params.top_k]
    weights = np.exp((np.array(scores) - scores[order[0]]) / params.temperature).tolist()
    total = sum(weights[i] for i in sorted(order))
    if params.typical_p < 1:
        surprise = {i: -math.log(max(weights[i] / total, 1e-300)) for i in order}
        mean = math.fsum(weights[i] / total * surprise[i] for i in order)
        nearest = sorted(order, key=lambda i: (round(abs(surprise[i] - mean), 9), i))
        ends = np.cumsum([weights[i] / total for i in nearest])
        nearest = nearest[: 1 + int((ends < params.typical_p - 1e-12).sum())]
        order = [i for i in order if i in nearest]
        total = sum(weights[i] for i in sorted(order))
    kept, mass = [], 0.0
    for i in order:
        if params.top_p < 1 and kept and mass >= params.top_p * total:
            break
        kept.append(i)
        mass += weights[i]
    kept = [i for i in kept if weights[i] >= params.min_p * max(weights[j] for j in kept)]
    total = math.fsum(weights[i] for i in kept)
    return {i: weights[i] / total for i in kept}


@given(LOGITS, PARAMS, TOKENS, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_scores_and_candidates_are_those_of_the_oracle(
    logits: list[float], params: SamplingParams, token_ids: list[int], data: st.DataObject
) -> None:
    prompt_len = data.draw(st.integers(1, len(token_ids)))
    want = oracle_scores(logits, params, token_ids, prompt_len)
    scores = sampler.adjusted(np.array(logits, np.float32), params, token_ids=token_ids, prompt_len=prompt_len)
    assert scores == pytest.approx(want, abs=1e-12)
    # The oracle goes on from these very scores, for the same reason.
    expected = oracle_probabilities(scores.tolist(), params)
    if params.temperature == 0:
        assert choose(logits, params, token_ids, prompt_len=prompt_len) == next(iter(expected))
        return
    weights = filtered(scores, params)
    likely = {i: p for i, p in expected.items() if p > 1e-300}
    assert set(np.flatnonzero(weights)) == set(likely)
    assert weights.max() == 1
    for i, p in likely.items():
        assert weights[i] / weights.sum() == pytest.approx(p, rel=1e-12)


@given(LOGITS, PARAMS, TOKENS, st.integers(0, 2**63 - 1))
@settings(max_examples=examples(200), deadline=None)
def test_a_draw_is_the_inverse_of_the_distribution(
    logits: list[float], params: SamplingParams, token_ids: list[int], seed: int
) -> None:
    """The token is the one in whose interval the keyed number falls, tokens in order of id."""
    scores = sampler.adjusted(np.array(logits, np.float32), params, token_ids=token_ids, prompt_len=len(token_ids))
    probabilities = oracle_probabilities(scores.tolist(), params)
    u = sampler.uniform(seed, 3, len(token_ids))
    ends = np.cumsum([probabilities.get(i, 0.0) for i in range(VOCAB)])
    token_id = choose(logits, params, token_ids, seed=seed, choice=3)
    assert probabilities[token_id] > 0
    assert ends[token_id] - probabilities[token_id] - 1e-9 <= u <= ends[token_id] + 1e-9


def test_greedy_takes_the_smallest_id_of_equals() -> None:
    greedy = SamplingParams(temperature=0)
    assert choose([1, 5, 5, 0, 5], greedy) == 1
    assert choose([-3, -3, -3], greedy) == 0
    assert choose([0.0, -0.0, 0.0], greedy) == 0


def test_greedy_ignores_the_seed_and_the_filters_but_not_the_penalties() -> None:
    params = SamplingParams(temperature=0, top_k=3, top_p=0.1, min_p=0.5)
    assert {choose([1, 2, 5, 3], params, seed=s) for s in range(20)} == {2}
    assert choose([1, 2, 5, 3], SamplingParams(temperature=0, repetition_penalty=2.0), token_ids=(2,)) == 3


def test_penalties_by_hand() -> None:
    logits = np.array([4.0, -4.0, 4.0, -4.0, 1.0], np.float32)
    token_ids, prompt_len = [0, 1, 2, 2, 3], 2  # prompt 0 1, output 2 2 3

    def scores(**params: float) -> list[float]:
        adjusted = sampler.adjusted(logits, SamplingParams(**params), token_ids=token_ids, prompt_len=prompt_len)
        return adjusted.tolist()

    assert scores(repetition_penalty=2.0) == [2, -8, 2, -8, 1], "prompt and output alike"
    assert scores(presence_penalty=1.5) == [4, -4, 2.5, -5.5, 1], "output only, once"
    assert scores(frequency_penalty=1.5) == [4, -4, 1, -5.5, 1], "output only, for each time"
    assert scores(logit_bias={0: -6.0, 4: 2.5}) == [-2, -4, 4, -4, 3.5]
    assert scores(logit_bias={0: -6.0}, repetition_penalty=2.0) == [-4, -8, 2, -8, 1], "bias first: it turned negative"
    both = scores(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=0.5)
    assert both == [2, -8, 2 - 1 - 1.0, -8 - 1 - 0.5, 1], "repetition before presence and frequency"


def test_logits_are_left_as_they_are() -> None:
    logits = np.arange(VOCAB, dtype=np.float64)
    params = SamplingParams(temperature=0.5, repetition_penalty=2.0, logit_bias={1: 5.0}, top_k=2)
    sampler.choose(logits, params, token_ids=[1, 2], prompt_len=1, seed=0, choice=0, barred=[3])
    assert (logits == np.arange(VOCAB)).all()


def test_filters_keep_the_smaller_ids_of_equals() -> None:
    scores = np.array([1.0, 2.0, 1.0, 2.0, 1.0, 1.0])

    def kept(**params: float) -> list[int]:
        return np.flatnonzero(filtered(scores, SamplingParams(**params))).tolist()

    assert kept(top_k=3) == [0, 1, 3]
    assert kept(top_k=1) == [1]
    assert kept(top_p=0.6) == [0, 1, 3], "e, e, 1 of 2e + 4: 0.58 are too few"
    assert kept(top_p=0.57) == [1, 3]
    assert kept(min_p=0.4) == [1, 3]
    assert kept(min_p=0.3) == [0, 1, 2, 3, 4, 5]
    assert kept(top_k=4, top_p=0.7) == [1, 3], "of what top-k left"


def test_top_p_of_exactly_the_share_needs_no_more() -> None:
    scores = np.log([0.5, 0.25, 0.25])
    weights = filtered(scores, SamplingParams(top_p=0.5))
    assert np.flatnonzero(weights).tolist() == [0]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.999, 1 - 1e-12])
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 5.0])
def test_top_p_of_many_tokens(share: float, spread: float) -> None:
    """More of them than are looked at first."""
    scores = np.random.default_rng(0).standard_normal(9000).round(2) * spread
    weights = filtered(scores, SamplingParams(top_p=share))
    order = np.argsort(-scores, kind="stable")
    masses = np.cumsum(np.exp(scores - scores.max())[order])
    num_kept = 1 + int((masses < share * masses[-1]).sum())
    assert abs(np.count_nonzero(weights) - num_kept) <= (spread == 0), "rounding of 9000 equal parts"
    assert set(np.flatnonzero(weights)) == set(order[: np.count_nonzero(weights)])


def test_extreme_temperatures() -> None:
    logits = [0.0, 1.0, 3.0, 2.99]
    assert {choose(logits, SamplingParams(temperature=1e-300), seed=s) for s in range(50)} == {2}
    assert {choose(logits, SamplingParams(temperature=5e-324), seed=s) for s in range(50)} == {2}
    assert {choose(logits, SamplingParams(temperature=100), seed=s) for s in range(100)} == {0, 1, 2, 3}
    huge = [3e38, -3e38, 3e38]
    assert {choose(huge, SamplingParams(), seed=s) for s in range(50)} == {0, 2}


def test_barred_tokens_are_never_chosen() -> None:
    for params in (SamplingParams(temperature=0), SamplingParams(), SamplingParams(logit_bias={2: 100})):
        assert {choose([0, 1, 50, 2], params, barred=[2, 3], seed=s) for s in range(50)} <= {0, 1}


def test_nothing_left_to_choose_from_is_an_error() -> None:
    with pytest.raises(RequestError, match="min_tokens=5"):
        choose([0, 1], SamplingParams(min_tokens=5), barred=[0, 1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_named(bad: float) -> None:
    logits = np.zeros(VOCAB, np.float32)
    assert sampler.finite_argmax(logits, 17) == 0
    logits[[4, 9]] = bad
    with pytest.raises(NumericsError, match=rf"position 17 .*{bad} at token id 4 \(2 of 12"):
        sampler.finite_argmax(logits, 17)
    with pytest.raises(NumericsError, match="position 2 "):
        choose(logits.tolist(), SamplingParams(temperature=0), token_ids=(1, 2, 3))


def test_the_draw_depends_on_seed_choice_and_position_and_nothing_else() -> None:
    logits = np.zeros(1000)
    base = {"token_ids": [1, 2, 3], "prompt_len": 3, "seed": 5, "choice": 1}

    def drawn(**changes: Any) -> int:
        return choose(logits, SamplingParams(), **(base | changes))

    assert drawn() == drawn()
    assert drawn(token_ids=[7, 8, 9], prompt_len=1) == drawn(), "which tokens came before is in the logits alone"
    assert len({drawn(), drawn(seed=6), drawn(choice=2), drawn(token_ids=[1, 2, 3, 4])}) == 4


def test_the_keyed_numbers_never_change() -> None:
    """They are part of what a seed promises: the same tokens tomorrow, on another machine, in another version."""
    assert sampler.uniform(0, 0, 0) == 0.156742553465558
    assert sampler.uniform(2**63 - 1, 63, 2**20) == 0.037819112834881374
    assert sampler.derived_seed(0, 0) == 7563658379751106640
    assert sampler.derived_seed(1, 0) != sampler.derived_seed(0, 1)


def test_keyed_numbers_are_uniform() -> None:
    """Chi-square over 64 bins, with keys as they occur: consecutive positions, choices and small seeds."""
    numbers = [sampler.uniform(s, c, p) for s in range(8) for c in range(4) for p in range(512)]
    assert all(0 <= u < 1 for u in numbers)
    counts = np.bincount((np.array(numbers) * 64).astype(int), minlength=64)
    expected = len(numbers) / 64
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert 26 < chi_square < 120, "63 degrees of freedom: outside with a chance below 1e-5"
    pairs = np.array(numbers).reshape(-1, 2)
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.05, "neighbouring positions"


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 4},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 1.7, "top_k": 8, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_tokens_come_as_often_as_they_should(params: dict[str, float]) -> None:
    """Chi-square of 4,000 draws against the oracle's distribution; seeds are fixed, so it passes always or never."""
    logits = [random.Random(7).gauss(0, 1.5) for _ in range(VOCAB)]
    sampling = SamplingParams(**params)
    scores = np.array(logits, np.float32).astype(float).tolist()
    expected = oracle_probabilities(scores, sampling)
    num_draws = 4000
    counts = Counter(choose(logits, sampling, seed=s, choice=s % 3) for s in range(num_draws))
    assert set(counts) <= set(expected)
    chi_square = sum((counts[i] - num_draws * p) ** 2 / (num_draws * p) for i, p in expected.items())
    freedom = len(expected) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 4, f"{chi_square:.1f} at {freedom} degrees of freedom"


def test_draw_at_the_ends_of_the_interval() -> None:
    weights = np.array([0.0, 1.0, 0.0, 1e-30, 0.0])
    assert sampler.draw(weights, 0.0) == 1, "never a token of no weight"
    assert sampler.draw(weights, 1 - 2**-53) == 1
    assert sampler.draw(np.array([1.0, 1.0, 0.0]), 0.5) == 1
    for total in np.random.default_rng(0).uniform(1, 2, 2000):
        assert sampler.draw(np.array([total, 0.0]), 1 - 2**-53) == 0
    for total in (1.0, np.nextafter(1, 2), np.nextafter(2, 1)):
        assert sampler.draw(np.array([total, 0.0]), 1 - 2**-53) == 0


@pytest.mark.parametrize("seed", range(8))
def test_as_transformers_filters(seed: int) -> None:
    """The same tokens kept, at the same probabilities, on logits without ties."""
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as hf

    rng = np.random.default_rng(seed)
    vocab = 300
    logits = rng.standard_normal(vocab) * 3
    token_ids = rng.integers(0, vocab, 40).tolist()
    params = SamplingParams(
        temperature=float(rng.choice([0.4, 0.7, 1.3])),
        top_k=int(rng.choice([0, 5, 50])),
        top_p=float(rng.choice([0.5, 0.9, 1.0])),
        min_p=float(rng.choice([0.0, 0.02, 0.2])),
        typical_p=float(rng.choice([0.2, 0.9, 1.0])),
        repetition_penalty=float(rng.choice([1.0, 1.3])),
    )
    processors = [
        hf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty),
        hf.TemperatureLogitsWarper(params.temperature),
        *([hf.TopKLogitsWarper(params.top_k)] if params.top_k else []),
        *([hf.TypicalLogitsWarper(params.typical_p)] if params.typical_p < 1 else []),
        *([hf.TopPLogitsWarper(params.top_p)] if params.top_p < 1 else []),
        *([hf.MinPLogitsWarper(params.min_p)] if params.min_p else []),
    ]
    scores = torch.from_numpy(logits.copy())[None]
    for processor in processors:
        scores = processor(torch.tensor([token_ids]), scores)
    want = torch.softmax(scores, dim=-1)[0].numpy()
    weights = filtered(sampler.adjusted(logits, params, token_ids=token_ids, prompt_len=30), params)
    assert (np.flatnonzero(weights) == np.flatnonzero(want)).all()
    assert weights / weights.sum() == pytest.approx(want, rel=1e-9)


FORMS = st.lists(st.booleans(), min_size=VOCAB, max_size=VOCAB).filter(any)
PROBABLE = st.lists(st.floats(-6, 6, width=32), min_size=VOCAB, max_size=VOCAB)


@given(PROBABLE, st.floats(0, 1), st.booleans())
@settings(deadline=None)
def test_xtc_takes_out_all_top_choices_but_the_least(logits: list[float], threshold: float, acts: bool) -> None:
    """As llama.cpp and text-generation-webui define it, on sorted probabilities."""
    params = SamplingParams(xtc_probability=0.5, xtc_threshold=threshold)
    row = np.array(logits, np.float32)
    weights = np.exp(row.astype(np.float64) - row.max())
    p = weights / weights.sum()
    if (np.abs(p - threshold) < 1e-9).any():
        return  # rounding would decide
    order = sorted(range(VOCAB), key=lambda i: (-p[i], i))
    top = [i for i in order if p[i] >= threshold]
    want = [i for i in range(VOCAB) if not acts or i not in top[:-1]]
    found, _ = sampler.candidates(row, params, excludes=acts)
    assert found.tolist() == want


def test_xtc_acts_as_often_as_asked_and_disturbs_no_draw() -> None:
    """Where it does not act, and where its threshold is met by fewer than two, each token is the one drawn without."""
    row = np.array([3.0, 2.9, 0.0, -1.0], np.float32)
    plain, acted = SamplingParams(), 0
    for number in range(2000):
        arguments = {"token_ids": [0] * (number % 7 + 1), "seed": number, "choice": number % 3}
        without = choose(row, plain, **arguments)
        u = sampler.uniform(number, number % 3, number % 7 + 1)
        assert choose(row, SamplingParams(xtc_probability=1, xtc_threshold=0.9), **arguments) == without
        drawn = choose(row, SamplingParams(xtc_probability=0.3, xtc_threshold=0.2), **arguments)
        chance = sampler.xtc_draw(SamplingParams(xtc_probability=0.3), number, number % 3, number % 7 + 1)
        if chance < 0.3:
            acted += 1
            ids, weights = np.array([1, 2, 3]), np.exp(row[1:].astype(np.float64) - 3)
            assert drawn == ids[sampler.draw(weights, u)]
        else:
            assert drawn == without
    assert 500 < acted < 700


@given(LOGITS, PARAMS, FORMS, TOKENS, st.integers(0, 2**40))
@settings(deadline=None, max_examples=examples(300))
def test_a_form_of_few_or_of_many_tokens_draws_alike(
    logits: list[float], params: SamplingParams, form: list[bool], token_ids: list[int], seed: int
) -> None:
    """The row of the tokens that fit, and the row in which the others are -inf, have the same bits of every step."""
    fitting = np.array(form)
    ids = np.flatnonzero(fitting)
    scores = sampler.adjusted(np.array(logits, np.float32), params, token_ids=token_ids, prompt_len=1)
    if params.temperature == 0:
        return
    few, weights = sampler.candidates(scores[ids], params, excludes=seed % 2 == 0)
    many, others = sampler.candidates(np.where(fitting, scores, -np.inf), params, excludes=seed % 2 == 0)
    for position in range(1, 9):
        u = sampler.uniform(seed, 0, position)
        assert ids[few[sampler.draw(weights, u)]] == many[sampler.draw(others, u)]


@given(LOGITS, PARAMS, TOKENS, st.integers(0, 2**40))
@settings(deadline=None)
def test_neutral_values_are_none_at_all(
    logits: list[float], params: SamplingParams, token_ids: list[int], seed: int
) -> None:
    neutral = {
        "dry_multiplier": 0,
        "dry_base": 3.0,
        "dry_allowed_length": 1,
        "xtc_probability": 0,
        "xtc_threshold": 0.2,
        "no_repeat_ngram_size": 0,
        "bad_words": [],
        "bad_words_ids": None,
    }
    quiet = replace(params, top_n_sigma=-1, typical_p=1)
    bare = replace(params, top_n_sigma=0.0, typical_p=1.0)
    arguments = {"token_ids": token_ids, "prompt_len": 1, "seed": seed}
    assert choose(logits, replace(quiet, **neutral), **arguments) == choose(logits, bare, **arguments)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"no_repeat_ngram_size": 1}, "no_repeat_ngram_size; leave out no_repeat_ngram_size"),
        ({"bad_words_ids": [[0], [1], [2]]}, "bad_words; leave out bad_words"),
        (
            {"no_repeat_ngram_size": 1, "allowed_token_ids": [0, 1]},
            "allowed_token_ids and no_repeat_ngram_size; leave out no_repeat_ngram_size",
        ),
    ],
)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_where_nothing_is_left_the_error_says_what_bars(fields: dict[str, Any], names: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, **fields)
    words = Words(unseen=params.bad_words_ids)
    with pytest.raises(RequestError, match=f"^all [23] tokens are barred by {names}$"):
        choose([1.0, 2.0, 3.0], params, [0, 1, 2], words=words)
    with pytest.raises(RequestError, match=r"min_tokens or (bad_words|no_repeat_ngram_size); change it"):
        choose([1.0, 2.0, 3.0], params, [0, 1, 2], words=words, fitting=np.array([True, True, False]))


def test_a_step_with_every_sampler_has_no_loop_over_the_vocabulary() -> None:
    """16 sequences of 4,000 tokens with a vocabulary of 150,000: far from what a loop in Python would take."""
    rng = np.random.default_rng(0)
    row = rng.standard_normal(150_000).astype(np.float32) * 3
    tokens = rng.integers(0, 5000, 4000).tolist()
    params = SamplingParams(
        top_n_sigma=2.0,
        typical_p=0.9,
        xtc_probability=1.0,
        xtc_threshold=0.05,
        dry_multiplier=0.8,
        repeat_last_n=64,
        repetition_penalty=1.1,
        no_repeat_ngram_size=3,
        bad_words_ids=[[i, i + 1] for i in range(1000)],
    )
    words = Words(unseen=params.bad_words_ids)
    before = process_time()
    for choice in range(16):
        choose(row, params, tokens, words=words, choice=choice)
    assert process_time() - before < 3, "it takes some tenths of a second"


def test_tokens_of_words_that_the_model_does_not_have_bar_nothing() -> None:
    """A tokenizer may have more tokens than the model has logits."""
    words = Words(unwritten=((2,), (900,)), unseen=((1, 901),))
    assert choose([1.0, 2.0, 3.0], SamplingParams(temperature=0), [0, 1], words=words) == 1


EXTREME = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 1e-300, 1e-9, 0.5, 100]),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([1, 1e-9, 0.5]),
    min_p=st.sampled_from([0, 1, 0.3]),
    typical_p=st.sampled_from([1, 1e-9, 0.5, 0.999999999]),
    top_n_sigma=st.sampled_from([0, 1e-9, 1, 100]),
    xtc_probability=st.sampled_from([0, 0.5, 1]),
    xtc_threshold=st.sampled_from([0, 1e-300, 0.1, 1]),
    dry_multiplier=st.sampled_from([0, 100]),
    dry_base=st.sampled_from([1, 100]),
    dry_allowed_length=st.sampled_from([0, 1, 9]),
    no_repeat_ngram_size=st.sampled_from([0, 0, 2]),
    repeat_last_n=st.sampled_from([None, 0, 2]),
    repetition_penalty=st.sampled_from([1, 0.001]),
)
EXTREME_ROWS = st.lists(st.sampled_from([-3e38, -700.0, -30.0, 0.0, 1.0, 30.0, 3e38]), min_size=1, max_size=40)


@given(EXTREME_ROWS, EXTREME, st.integers(1, 200), st.integers(0, 2**63 - 1), st.booleans())
@settings(deadline=None, max_examples=examples(500))
@pytest.mark.filterwarnings("error")
def test_extreme_values_draw_a_token_of_some_weight_or_say_why(
    logits: list[float], params: SamplingParams, num_tokens: int, seed: int, few: bool
) -> None:
    """Scores of 10^38, temperatures of nearly 0, thresholds of 0, ties: no warning, no token without a weight."""
    tokens = [i * i % len(logits) for i in range(num_tokens)]
    fitting = np.arange(len(logits)) == len(logits) // 2 if few else None
    arguments: dict[str, Any] = {"token_ids": tokens, "prompt_len": num_tokens // 2, "seed": seed, "choice": 63}
    arguments |= {"fitting": fitting}
    row = np.array(logits, np.float32)
    token, said = -1, ""
    try:
        token = sampler.choose(row, params, **arguments)
    except RequestError as error:
        said = str(error)
    if said:
        assert params.no_repeat_ngram_size and "no_repeat_ngram_size" in said
    else:
        assert explained(row, params, token, str, **arguments).drawn > 0
