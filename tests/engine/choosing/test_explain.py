"""Explanations against a recomputation from the logits in plain NumPy, and against the tokens that were drawn.

Covers: karat.explanation.
"""

import asyncio
import dataclasses
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat import LLM, AsyncLLM, Explanation, SamplingParams, StreamChunk
from karat.engine.choosing.bad_words import Words
from karat.engine.choosing.explain import NUM_ALTERNATIVES, explained
from karat.engine.choosing.sampler import choose, uniform
from tests.engine.fakes import END, alone, make_engine, request, run
from tests.engine.tiny import write_model
from tests.support.drawn import examples

VOCAB = 30
# Equal, or so far apart that no rounding decides which of two is larger.
LOGIT = st.integers(-9 * 4096, 9 * 4096).map(lambda n: n / 4096) | st.sampled_from([-1.0, 0.0, 2.5])
LOGITS = st.lists(LOGIT, min_size=VOCAB, max_size=VOCAB)
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8)
MASK = st.none() | st.lists(st.booleans(), min_size=VOCAB, max_size=VOCAB).filter(any)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 11, 99]),
    top_p=st.sampled_from([0.2, 0.61, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.07, 0.6]),
    top_n_sigma=st.sampled_from([0.0, 0.0, 0.8, 2.0]),
    typical_p=st.sampled_from([1.0, 1.0, 0.4, 0.83]),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.011, 0.123]),
    dry_multiplier=st.sampled_from([0.0, 0.75]),
    dry_allowed_length=st.sampled_from([0, 1]),
    no_repeat_ngram_size=st.sampled_from([0, 0, 1, 2]),
    bad_words_ids=st.sampled_from([(), ((3,), (4, 11)), ((0, 1, 2), (9, 9))]),
    repeat_last_n=st.sampled_from([None, -1, 3]),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.4]),
    presence_penalty=st.sampled_from([0.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.sampled_from([{}, {0: 5.0, 7: -3.25}]),
    allowed_token_ids=st.sampled_from([None, tuple(range(20)), (1, 2, 3, 28)]),
    min_tokens=st.just(0),
)
BARRED = (2, 5)
STEPS = ("grammar", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc")


def dry_by_hand(params: SamplingParams, token_ids: list[int]) -> dict[int, float]:
    """What DRY takes, from the longest end of the text that also stands before each token."""
    longest: dict[int, int] = {}
    for place in range(1, len(token_ids)):
        alike = 0
        while alike < place and token_ids[place - 1 - alike] == token_ids[-1 - alike]:
            alike += 1
        if alike >= params.dry_allowed_length and len(token_ids) > params.dry_allowed_length:
            longest[token_ids[place]] = max(alike, longest.get(token_ids[place], 0))
    if not params.dry_multiplier:
        return {}
    return {t: params.dry_multiplier * params.dry_base ** (n - params.dry_allowed_length) for t, n in longest.items()}


def by_hand(
    logits: NDArray[np.float64],
    params: SamplingParams,
    token_ids: list[int],
    prompt_len: int,
    mask: Any,
    barred: Any,
    acts: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.float64], dict[str, int], list[str | None]]:
    """Penalties [vocab], probabilities after everything [vocab], how many each step left, what cut each token."""
    scores = logits.copy()
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    last_n = params.repeat_last_n
    recent = token_ids if last_n in (None, -1) else token_ids[-last_n:]
    answer = token_ids[prompt_len:] if last_n is None else recent
    for token in set(recent):
        penalty = params.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token in set(answer):
        count = answer.count(token)
        scores[token] -= params.presence_penalty + params.frequency_penalty * count
    for token, loss in dry_by_hand(params, token_ids).items():
        scores[token] -= loss
    penalties = scores - logits
    cut: list[str | None] = [None] * VOCAB
    kept: dict[str, int] = {}

    def take(step: str, left: set[int]) -> None:
        for token in range(VOCAB):
            if cut[token] is None and token not in left:
                cut[token] = step
        kept[step] = sum(why is None for why in cut)

    every = set(range(VOCAB))
    if mask is not None:
        take("grammar", {i for i in every if mask[i]})
    take("min_tokens", every - set(barred))
    if params.allowed_token_ids is not None:
        take("allowed_token_ids", set(params.allowed_token_ids))
    ends = [(w[-1], list(w[:-1])) for w in params.bad_words_ids]
    bad = {last for last, rest in ends if not rest or token_ids[-len(rest) :] == rest}
    if bad:
        take("bad_words", every - bad)
    size = params.no_repeat_ngram_size
    if size:
        runs = [token_ids[i : i + size] for i in range(len(token_ids) - size + 1)]
        take(
            "no_repeat_ngram_size",
            every - {run[-1] for run in runs if run[:-1] == token_ids[len(token_ids) - size + 1 :]},
        )
    open_ids = [i for i in range(VOCAB) if cut[i] is None]
    final = np.zeros(VOCAB)
    if not open_ids:
        return penalties, final, kept, cut
    order = sorted(open_ids, key=lambda i: (-scores[i], i))
    if params.temperature == 0:
        final[order[0]] = 1
        return penalties, final, kept, cut
    if params.top_n_sigma > 0:
        deviation = float(np.std([scores[i] for i in order]))
        order = [i for i in order if scores[i] >= scores[order[0]] - params.top_n_sigma * deviation]
        take("top_n_sigma", set(order))
    if params.top_k > 0:
        order = order[: params.top_k]
        take("top_k", set(order))
    weights = {i: float(np.exp((scores[i] - scores[order[0]]) / params.temperature)) for i in order}
    if params.typical_p < 1:
        total = sum(weights.values())
        surprise = {i: -math.log(weights[i] / total) for i in order}
        mean = sum(weights[i] / total * surprise[i] for i in order)
        nearest = sorted(order, key=lambda i: (round(abs(surprise[i] - mean), 9), i))
        num = 1 + sum(sum(weights[i] for i in nearest[: n + 1]) < params.typical_p * total for n in range(len(order)))
        order = [i for i in order if i in nearest[:num]]
        weights = {i: weights[i] for i in order}
        take("typical_p", set(order))
    if params.top_p < 1:
        total, mass, nucleus = sum(weights.values()), 0.0, []
        for i in order:
            nucleus.append(i)
            mass += weights[i]
            if mass >= params.top_p * total:
                break
        order = nucleus
        take("top_p", set(order))
    if params.min_p > 0:
        order = [i for i in order if weights[i] >= params.min_p * weights[order[0]]]
        take("min_p", set(order))
    if params.xtc_probability:
        total = sum(weights[i] for i in order)
        top = [i for i in order if weights[i] / total >= params.xtc_threshold]
        order = [i for i in order if not acts or i not in top[:-1]]
        take("xtc", set(order))
    for i in order:
        final[i] = weights[i] / sum(weights[j] for j in order)
    return penalties, final, kept, cut


@given(LOGITS, PARAMS, TOKENS, st.integers(0, 8), MASK, st.booleans(), st.integers(0, 2**40), st.integers(0, 3))
@settings(deadline=None, max_examples=examples(400))
def test_every_number_follows_from_the_logits(
    logits: list[float],
    params: SamplingParams,
    tokens: list[int],
    prompt: int,
    mask: Any,
    bars: bool,
    seed: int,
    n: int,
) -> None:
    row, prompt_len = np.array(logits, np.float32), min(prompt, len(tokens))
    barred = BARRED if bars else ()
    chance = uniform(seed, n, len(tokens), b"karat-xtc")
    acts = chance < params.xtc_probability
    penalties, final, kept, cut = by_hand(row.astype(np.float64), params, tokens, prompt_len, mask, barred, acts)
    if not final.any():
        return  # nothing may be chosen, which `choose` refuses
    fitting = None if mask is None else np.array(mask)
    given_to: dict[str, Any] = {"token_ids": tokens, "prompt_len": prompt_len, "seed": seed, "choice": n}
    given_to |= {"barred": barred, "fitting": fitting, "words": Words(unseen=params.bad_words_ids)}
    token = choose(row, params, **given_to)
    found = explained(row, params, token, lambda i: f"<{i}>", **given_to)

    probabilities = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
    order = sorted(range(VOCAB), key=lambda i: (-row[i], i))
    assert (found.token, found.text, found.position) == (token, f"<{token}>", len(tokens))
    assert found.temperature == params.temperature
    shown = [alternative.token for alternative in found.alternatives]
    assert shown == order[:NUM_ALTERNATIVES] + ([token] if token not in order[:NUM_ALTERNATIVES] else [])
    for each in (*found.alternatives, found):
        assert each.text == f"<{each.token}>" and each.rank == order.index(each.token) + 1
        assert each.probability == pytest.approx(probabilities[each.token], rel=1e-12)
        assert each.drawn == pytest.approx(final[each.token], rel=1e-12)
    for alternative in found.alternatives:
        assert alternative.penalty == pytest.approx(penalties[alternative.token], abs=1e-12)
        assert alternative.cut_by == cut[alternative.token]
    assert dataclasses.asdict(found.kept) == {step: kept.get(step) for step in STEPS}
    losses = dry_by_hand(params, tokens)
    assert [a.dry for a in found.alternatives] == pytest.approx([-losses.get(a.token, 0) for a in found.alternatives])
    assert found.xtc_draw == (chance if params.xtc_probability and params.temperature else None)
    if params.temperature == 0:
        assert found.draw is None and found.drawn == 1
    else:
        assert found.draw is not None and 0 <= found.draw < 1
        ends = np.cumsum(final)
        assert ends[-1] == pytest.approx(1)
        low, high = ends[token] - final[token], ends[token]
        assert low - 1e-12 <= found.draw <= high + 1e-12, "the number falls into the token's own part"


def test_one_entry_a_token_whatever_becomes_of_its_text() -> None:
    """Held back for a stop string, cut by it, inside a character, at the end token."""
    text = "aä☃STx".encode()

    def logits_of(context: tuple[int, ...]) -> NDArray[np.floating]:
        row = np.zeros(258, np.float32)
        row[text[len(context) - 2] if len(context) - 2 < len(text) else END] = 50
        return row

    for stop, expected in (("STOP", "aä☃STx"), ("ST", "aä☃"), ("☃S", "aä")):
        engine, _ = make_engine(logits_of)
        engine.add_request(request("a", [1, 2], temperature=0, max_tokens=20, stop=(stop,), explain=True))
        chunks: list[StreamChunk] = []
        outputs = []
        while engine.has_work:
            for update in engine.step():
                chunks += update.chunks
                outputs += [update.output] if update.output else []
        (choice,) = outputs[0].outputs
        assert choice.text == expected and choice.explanations is not None
        assert [entry.token for entry in choice.explanations] == list(choice.token_ids)
        assert [entry.position for entry in choice.explanations] == list(range(2, 2 + len(choice.token_ids)))
        for chunk in chunks:
            assert chunk.explanations is not None
            assert [entry.token for entry in chunk.explanations] == list(chunk.token_ids)
        assert tuple(entry for chunk in chunks for entry in chunk.explanations or ()) == choice.explanations


def test_it_changes_no_token_and_is_made_for_none_that_does_not_ask() -> None:
    asked: dict[str, Any] = {"temperature": 1.0, "n": 3, "top_p": 0.9, "max_tokens": 9, "min_tokens": 4}
    plain, told = (request("a", [1, 2, 3], seed=5, explain=explain, **asked) for explain in (False, True))
    engine, _ = make_engine()
    for output, other in zip(run(engine, plain)["a"].outputs, alone(told).outputs, strict=True):
        assert output.token_ids == other.token_ids
        assert output.explanations is None and other.explanations is not None
        first = other.explanations[0]
        assert first.alternatives and len({entry.draw for entry in other.explanations}) == len(other.token_ids)
    barred = [a.cut_by for choice in alone(told).outputs for e in choice.explanations or () for a in e.alternatives]
    assert set(barred) <= {None, "min_tokens", "top_p"}


def test_a_grammar_says_what_it_took_out(tmp_path: Path) -> None:
    """And AsyncLLM tells what LLM tells."""
    folder = write_model(tmp_path)
    params = SamplingParams(seed=3, max_tokens=12, n=2, explain=True, structured_outputs={"regex": "[ab]{4}"})
    with LLM(folder) as llm:
        (output,) = llm.generate("Once", params)
        streamed = list(llm.stream("Once", dataclasses.replace(params, n=1)))
    explanations = [choice.explanations for choice in output.outputs]
    assert explanations[0] == tuple(e for chunk in streamed for e in chunk.explanations or ())
    for entry in explanations[0] or ():
        assert entry.kept.grammar == 2 and entry.text in "ab"
        assert all(a.cut_by == "grammar" for a in entry.alternatives if a.text not in ("a", "b"))
        assert sum(a.drawn for a in entry.alternatives if a.text in ("a", "b")) <= 1

    async def ask() -> list[tuple[Explanation, ...] | None]:
        async with await AsyncLLM.open(folder) as llm:
            answer = await llm.generate("Once", params)
            assert not isinstance(answer, list)
            return [choice.explanations for choice in answer.outputs]

    assert asyncio.run(ask()) == explanations


def test_messages_carry_it() -> None:
    (choice,) = alone(request("a", [1, 2], max_tokens=3, explain=True)).outputs
    chunk = StreamChunk(0, "", choice.token_ids, explanations=choice.explanations)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(chunk), type=StreamChunk) == chunk


def test_the_example_of_the_docs() -> None:
    """docs/sampling.md, "An example": its numbers are those of the embedded model."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "sampling.md").read_text(encoding="utf-8")
    code = page[page.index("from karat import") : page.index("answer = LLM()")]
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - it is our own page
    with LLM() as llm:
        (output,) = llm.generate(names["prompt"], names["params"])
        assert f"Of {llm.config.vocab_size:,} tokens" in " ".join(page.split())
    entries = output.outputs[0].explanations
    assert entries is not None
    first, later = entries[0], entries[17]
    assert f"{first.draw:.3f}" in page and f"{later.xtc_draw:.3f}" in page
    kept = [later.kept.top_n_sigma, later.kept.top_k, later.kept.typical_p, later.kept.top_p, later.kept.min_p]
    assert [*kept, later.kept.xtc] == [81, 12, 6, 5, 5, 3]
    for entry, num in ((first, 3), (later, 5)):
        for each in entry.alternatives[:num]:
            drawn = f"{each.drawn:.1%}".replace("%", " %") if each.drawn else "0"
            assert f"| `{each.text}` | {each.probability:.1%}".replace("%", " %") in page
            assert f"| {drawn} | {each.cut_by or ''}".rstrip() in page
    assert first.alternatives[0].penalty == pytest.approx(-4.75, abs=0.005)
    assert first.alternatives[0].dry == pytest.approx(-2.45)
