"""ForwardBatch.validate: a right batch passes, and each way to get one wrong is named."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from karat.batch import ForwardBatch


def ints(*values: object) -> np.ndarray:
    return np.array(values, np.int32)


# Two sequences in blocks of 4: one in prefill from position 3 on, over blocks 5 and 2; one in decode at position 4.
GOOD = ForwardBatch(
    token_ids=ints(7, 8, 9, 1),
    positions=ints(3, 4, 5, 4),
    slots=ints(23, 8, 9, 0),
    query_starts=ints(0, 3, 4),
    context_lens=ints(6, 5),
    block_tables=ints([5, 2, -1], [3, 0, -1]),
    logit_rows=ints(2, 3),
    block_size=4,
)
CACHED = ints(3, 4)


def validate(batch: ForwardBatch, cached_lens: np.ndarray = CACHED, num_slots: int = 24, vocab_size: int = 10) -> None:
    batch.validate(cached_lens=cached_lens, num_slots=num_slots, vocab_size=vocab_size)


def test_a_right_batch() -> None:
    validate(GOOD)
    validate(replace(GOOD, logit_rows=ints()))
    assert GOOD.num_tokens == 4 and GOOD.num_seqs == 2


WRONG: dict[str, tuple[str, Callable[[], ForwardBatch]]] = {
    "positions restart at the chunk": ("do not continue", lambda: replace(GOOD, positions=ints(0, 1, 2, 4))),
    "positions shifted by one": ("do not continue", lambda: replace(GOOD, positions=ints(4, 5, 6, 4))),
    "a position frozen": ("do not continue", lambda: replace(GOOD, positions=ints(3, 4, 4, 4))),
    "written to the wrong slot": ("slots ≠", lambda: replace(GOOD, slots=ints(23, 8, 10, 0))),
    "a slot of another sequence": ("slots ≠", lambda: replace(GOOD, slots=ints(23, 8, 0, 9))),
    "two tokens in one slot": (
        "one slot",
        lambda: replace(GOOD, block_tables=ints([5, 0, -1], [3, 0, -1]), slots=ints(23, 0, 1, 0)),
    ),
    "context without the new tokens": ("context_lens ≠", lambda: replace(GOOD, context_lens=ints(3, 4))),
    "a block outside": (
        "outside the cache",
        lambda: replace(GOOD, block_tables=ints([6, 2, -1], [3, 0, -1]), slots=ints(27, 8, 9, 0)),
    ),
    "a used entry of the table left out": (
        "outside the cache",
        lambda: replace(GOOD, block_tables=ints([-1, 2, -1], [3, 0, -1]), slots=ints(-1, 8, 9, 0)),
    ),
    "an unused entry of the table set": (
        "unused",
        lambda: replace(GOOD, block_tables=ints([5, 2, 1], [3, 0, -1])),
    ),
    "a table too short": ("ends before", lambda: replace(GOOD, block_tables=ints([5], [3]))),
    "tables for other sequences": ("per-sequence", lambda: replace(GOOD, block_tables=ints([5, 2]))),
    "a token outside the vocabulary": ("vocabulary", lambda: replace(GOOD, token_ids=ints(7, 8, 10, 1))),
    "a negative token": ("vocabulary", lambda: replace(GOOD, token_ids=ints(7, -1, 9, 1))),
    "a row twice": ("logit_rows", lambda: replace(GOOD, logit_rows=ints(2, 2))),
    "a row beyond": ("logit_rows", lambda: replace(GOOD, logit_rows=ints(2, 4))),
    "bounds that leave tokens out": ("query_starts", lambda: replace(GOOD, query_starts=ints(0, 2, 3))),
    "a sequence without tokens": ("query_starts", lambda: replace(GOOD, query_starts=ints(0, 4, 4))),
    "64-bit positions": ("int32", lambda: replace(GOOD, positions=GOOD.positions.astype(np.int64))),
    "arrays of different lengths": ("differ in length", lambda: replace(GOOD, positions=ints(3, 4, 5))),
    "no tokens": ("empty", lambda: replace(GOOD, token_ids=ints())),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_batch(what: str) -> None:
    message, make = WRONG[what]
    with pytest.raises(AssertionError, match=message):
        validate(make())


@pytest.mark.parametrize("cached", [ints(2, 4), ints(3, 5), ints(3)])
def test_a_cache_of_another_length(cached: np.ndarray) -> None:
    """The stale or forgotten token: positions say one thing, the cache another."""
    with pytest.raises(AssertionError, match="context_lens ≠ cache length"):
        validate(GOOD, cached_lens=cached)
