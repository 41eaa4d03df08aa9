"""Explanations against a recomputation from the logits in plain NumPy, and against the tokens that were drawn.

Covers: karat.explanation.
"""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat import LLM, AsyncLLM, Explanation, SamplingParams, StreamChunk
from karat.engine.async_messages import Piece
from karat.engine.explain import NUM_ALTERNATIVES, explained
from karat.engine.sampler import choose
from tests.engine.fakes import END, alone, make_engine, request, run
from tests.engine.tiny import write_model

VOCAB = 30
LOGITS = st.lists(st.floats(-9, 9, width=32) | st.sampled_from([-1.0, 0.0, 2.5]), min_size=VOCAB, max_size=VOCAB)
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8)
MASK = st.none() | st.lists(st.booleans(), min_size=VOCAB, max_size=VOCAB).filter(any)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 11, 99]),
    top_p=st.sampled_from([0.2, 0.61, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.07, 0.6]),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.4]),
    presence_penalty=st.sampled_from([0.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.sampled_from([{}, {0: 5.0, 7: -3.25}]),
    allowed_token_ids=st.sampled_from([None, tuple(range(20)), (1, 2, 3, 28)]),
    min_tokens=st.just(0),
)
BARRED = (2, 5)


def by_hand(
    logits: NDArray[np.float64], params: SamplingParams, token_ids: list[int], prompt_len: int, mask: Any, barred: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64], dict[str, int], list[str | None]]:
    """Penalties [vocab], probabilities after everything [vocab], how many each step left, what cut each token."""
    scores = logits.copy()
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    for token in set(token_ids):
        penalty = params.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token in set(token_ids[prompt_len:]):
        count = token_ids[prompt_len:].count(token)
        scores[token] -= params.presence_penalty + params.frequency_penalty * count
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
    open_ids = [i for i in range(VOCAB) if cut[i] is None]
    final = np.zeros(VOCAB)
    if not open_ids:
        return penalties, final, kept, cut
    order = sorted(open_ids, key=lambda i: (-scores[i], i))
    if params.temperature == 0:
        final[order[0]] = 1
        return penalties, final, kept, cut
    if params.top_k > 0:
        order = order[: params.top_k]
        take("top_k", set(order))
    weights = {i: float(np.exp((scores[i] - scores[order[0]]) / params.temperature)) for i in order}
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
        order = [i for i in order if weights[i] >= params.min_p]
        take("min_p", set(order))
    for i in order:
        final[i] = weights[i] / sum(weights[j] for j in order)
    return penalties, final, kept, cut


@given(LOGITS, PARAMS, TOKENS, st.integers(0, 8), MASK, st.booleans(), st.integers(0, 2**40), st.integers(0, 3))
@settings(deadline=None, max_examples=400)
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
    penalties, final, kept, cut = by_hand(row.astype(np.float64), params, tokens, prompt_len, mask, barred)
    if not final.any():
        return  # nothing may be chosen, which `choose` refuses
    fitting = None if mask is None else np.array(mask)
    given_to: dict[str, Any] = {"token_ids": tokens, "prompt_len": prompt_len, "seed": seed, "choice": n}
    given_to |= {"barred": barred, "fitting": fitting}
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
    assert dataclasses.asdict(found.kept) == {step: kept.get(step) for step in ("grammar", "top_k", "top_p", "min_p")}
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
    piece = msgspec.msgpack.decode(msgspec.msgpack.encode(Piece.of(chunk)), type=Piece)
    assert piece.chunk() == chunk
