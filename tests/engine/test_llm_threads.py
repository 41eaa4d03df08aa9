"""Several threads with one LLM, and an LLM that is closed.

Covers: karat.engine.shared_engine.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from karat import LLM, SamplingParams
from karat.errors import UsageError
from karat.ops.executor import AtOnce
from tests.engine.tiny import GREEDY, PROMPTS, at_rest, tokens

NUM_THREADS = 4


def test_threads_get_what_one_alone_gets(llm: LLM) -> None:
    """generate, streams and logits side by side, more than run at once."""
    params = [SamplingParams(max_tokens=12, seed=seed, ignore_eos=True) for seed in range(NUM_THREADS)]
    want = [tokens(llm.generate(PROMPTS, own)) for own in params]
    want_logits = llm.logits(list(range(30)))
    start = Barrier(NUM_THREADS)

    def use(number: int) -> None:
        start.wait(300)
        for _ in range(3):
            assert tokens(llm.generate(PROMPTS, params[number])) == want[number]
            chunks = list(llm.stream(PROMPTS[0], params[number]))
            assert sum((chunk.token_ids for chunk in chunks), ()) == want[number][0]
            # Other steps, so other shapes of the reference executor's float64 sums: a few hundred roundings.
            assert np.abs(llm.logits(list(range(30))) - want_logits).max() < 1e-10

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        for done in [threads.submit(use, number) for number in range(NUM_THREADS)]:
            done.result(1200)
    assert at_rest(llm) and not llm.engine._entries


def test_a_stream_that_ends_in_the_middle_of_a_step_ends_after_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the garbage collector finds it then."""
    want = tokens(llm.generate("abc", GREEDY))
    other, run = llm.stream("another", GREEDY), llm.engine.run
    next(other)

    def closing(batch: Any) -> Any:
        other.close()
        return run(batch)

    monkeypatch.setattr(llm.engine, "run", AtOnce(closing))
    assert tokens(llm.generate("abc", GREEDY)) == want
    assert at_rest(llm) and not llm.engine._entries


@pytest.mark.parametrize(
    "use",
    [
        lambda llm: llm.generate("a"),
        lambda llm: llm.generate([]),
        lambda llm: llm.stream("a"),
        lambda llm: llm.chat([{"role": "user", "content": "a"}]),
        lambda llm: llm.stream_chat([{"role": "user", "content": "a"}]),
        lambda llm: llm.logits([1]),
        lambda llm: llm.check_ranks(),
        lambda llm: llm.__enter__(),
    ],
)
def test_a_closed_llm_says_so(folder: Path, use: Callable[[LLM], object]) -> None:
    with LLM(folder) as llm:
        stream = llm.stream("a", GREEDY)
        next(stream)
    with pytest.raises(UsageError, match="this LLM was closed"):
        use(llm)
    with pytest.raises(UsageError, match="this LLM was closed"):
        list(stream)
    llm.close()
    assert at_rest(llm)
