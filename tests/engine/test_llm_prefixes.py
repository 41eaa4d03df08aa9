"""Real executors where prompts begin alike: the same bits, shared or not, preempted or not, from the native one.

The reference's matrix products round differently for other numbers of rows: float64 logits 1e-10, as in test_llm.

Covers: karat.kv.cache.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import karat.engine.choosing.choice
from karat import LLM, SamplingParams
from karat.errors import UsageError
from karat.ops.native import unavailable_reason
from tests.engine.tiny import VOCAB, at_rest, preempt_often, tokens, write_model

SYSTEM = "Once upon a time there was a fox who had a lantern. "  # 52 tokens: 3 blocks of 16
PROMPTS = [SYSTEM + "It was old.", SYSTEM, SYSTEM[:20] + "no", SYSTEM + "It was old. And", SYSTEM + "It was old."]
PARAMS = [SamplingParams(max_tokens=30, ignore_eos=True, seed=i, n=1 + i % 2) for i in range(len(PROMPTS))]
Rows = dict[tuple[object, ...], NDArray[np.floating]]

EXECUTORS = [
    pytest.param(
        "native", marks=pytest.mark.skipif(unavailable_reason() is not None, reason="no native executor here")
    ),
    "reference",
]
VARIANTS: dict[str, dict[str, Any]] = {
    "shared": {},
    "shared, in chunks": {"max_num_seqs": 3, "max_num_batched_tokens": 7},
    "shared and preempted": {"num_blocks": 10},
    "not shared and preempted": {"num_blocks": 10, "enable_prefix_caching": False},
}


WINDOWED: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 0},
    "window on one layer": {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 1},
}


@pytest.fixture(scope="module", params=WINDOWED)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"), **WINDOWED[request.param])


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Every row of logits that a token is chosen by, under request's seed, choice and all tokens before."""
    seen: Rows = {}
    choose = karat.engine.choosing.choice.choose

    def watched(row: Any, params: Any, *, token_ids: Any, seed: int, choice: int, **rest: Any) -> int:
        seen[seed, choice, tuple(token_ids)] = row.copy()
        return choose(row, params, token_ids=token_ids, seed=seed, choice=choice, **rest)

    monkeypatch.setattr(karat.engine.choosing.choice, "choose", watched)
    return seen


def load(folder: Path, executor: str, **options: Any) -> LLM:
    return LLM(
        folder, executor=executor, dtype="float64" if executor == "reference" else "float32", threads=1, **options
    )


def same(executor: str) -> Callable[[NDArray[np.floating], NDArray[np.floating]], bool]:
    if executor == "native":
        return lambda one, other: one.tobytes() == other.tobytes()
    return lambda one, other: bool(np.abs(one - other).max() < 1e-10)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_generations_shared_and_not_preempted_and_not(folder: Path, executor: str, rows: Rows) -> None:
    plain = load(folder, executor, enable_prefix_caching=False)
    expected = tokens(plain.generate(PROMPTS, PARAMS))
    assert plain.engine.scheduler.num_found_tokens == 0
    expected_rows = dict(rows)
    assert len(expected_rows) == 30 * len(expected)
    is_same = same(executor)
    for name, options in VARIANTS.items():
        llm = load(folder, executor, **options)
        if "preempted" in name and None not in llm.engine.config.windows:
            preempt_often(llm)
        for turn in range(2):
            rows.clear()
            assert tokens(llm.generate(PROMPTS, PARAMS)) == expected, (name, turn)
            assert rows.keys() == expected_rows.keys(), (name, turn)
            assert all(is_same(rows[key], expected_rows[key]) for key in rows), (name, turn)
            assert at_rest(llm)
        assert (llm.engine.scheduler.num_preemptions > 0) == ("preempted" in name), name
        assert (llm.engine.scheduler.num_found_tokens > 500) == name.startswith("shared"), name


@pytest.mark.parametrize("executor", EXECUTORS)
def test_logits_of_a_text_of_which_the_beginning_is_known(folder: Path, executor: str) -> None:
    ids = tuple(np.random.default_rng(5).integers(0, 256, 100).tolist())
    cold = load(folder, executor, enable_prefix_caching=False).logits(ids)
    is_same = same(executor)
    llm = load(folder, executor, max_num_batched_tokens=23)
    for known in (0, 1, 16, 40, 99):
        llm.generate(ids[: max(known, 1)], SamplingParams(max_tokens=1, temperature=0))
        assert is_same(llm.logits(ids), cold), "all computed, read through blocks that others hold"
        logits = np.full((100, VOCAB), np.nan, cold.dtype)
        reader = llm.engine.add_logits(ids, logits)
        reader.sequence.num_read = known
        before = llm.engine.scheduler.num_found_tokens
        while not reader.done:
            llm.engine.step()
        assert llm.engine.scheduler.num_found_tokens - before == known // 16 * 16
        assert is_same(logits[known:], cold[known:]) and np.isnan(logits[:known]).all()
    assert at_rest(llm)


def test_a_conversation_is_not_computed_again(folder: Path) -> None:
    llm = load(folder, "reference")
    messages = [{"role": "user", "content": "Tell me of a fox and of a lantern."}]
    first = llm.chat(messages, SamplingParams(temperature=0, max_tokens=20))[0]
    assert llm.engine.scheduler.num_found_tokens == 0
    llm.chat(messages, SamplingParams(temperature=0, max_tokens=20))
    assert llm.engine.scheduler.num_found_tokens == (len(first.prompt_token_ids) - 1) // 16 * 16 >= 32


def test_the_switch_is_a_truth_value(folder: Path) -> None:
    with pytest.raises(UsageError, match="enable_prefix_caching=1: expected True or False"):
        LLM(folder, enable_prefix_caching=1)
