"""ForwardBatch.validate: a right batch passes, and each way to get one wrong is named."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.batch import COLUMNS, GROUP_COLUMNS, ForwardBatch, plain_batch
from karat.ops.native import unavailable_reason

# Two sequences in blocks of 4: one in prefill from position 3 on, one in decode at position 6. Group 0 holds them in
# blocks 5 and 2, and 3 and 0. Group 1 has a window of 2: of the second, no token sees the first block.
GOOD: dict[str, Any] = {
    "token_ids": [7, 8, 9, 1],
    "positions": [3, 4, 5, 6],
    "query_starts": [0, 3, 4],
    "context_lens": [6, 7],
    "logit_rows": [2, 3],
    "state_reads": [-1, -1],
    "state_writes": [-1, -1],
    "slots": [[23, 8, 9, 2], [7, 8, 9, 18]],
    "block_tables": [[[5, 2, -1], [3, 0, -1]], [[1, 2], [-1, 4]]],
}
CACHED = [3, 6]
CACHES = ((24, None), (20, 2))


def good(**changes: Any) -> ForwardBatch:
    """The batch with other columns. `slots` and `block_tables` are those of group 0; `slots_1` … those of group 1."""
    columns = {**GOOD, "slots": [*GOOD["slots"]], "block_tables": [*GOOD["block_tables"]]}
    for name, values in changes.items():
        base = name.removesuffix("_1")
        if base in ("slots", "block_tables"):
            columns[base][name.endswith("_1")] = values
        else:
            columns[name] = values
    return ForwardBatch.of(4, **columns)


def validate(batch: ForwardBatch, cached_lens: list[int] = CACHED, caches: Any = CACHES, vocab_size: int = 10) -> None:
    batch.validate(cached_lens=cached_lens, caches=caches, vocab_size=vocab_size)


def test_a_right_batch() -> None:
    validate(good())
    validate(good(logit_rows=[]))
    validate(good(block_tables_1=[[1, 2], [0, 4]]))  # a block that nobody sees any more may still be there
    assert good().num_tokens == 4 and good().num_seqs == 2 and good().num_groups == 2
    validate(plain_batch([3, 4, 5]), [0], [(3, None)])


def test_columns_are_views_of_one_array() -> None:
    batch = ForwardBatch(np.frombuffer(good().flat.tobytes(), np.int32))
    for column in COLUMNS:
        assert getattr(batch, column.name).tolist() == GOOD[column.name]
    for column in GROUP_COLUMNS:
        assert [getattr(batch, column.name)(group).tolist() for group in (0, 1)] == GOOD[column.name]
    assert all(np.shares_memory(view, batch.flat) for view in (batch.positions, batch.slots(1), batch.block_tables(0)))


@given(st.data())
def test_columns_of_any_lengths(data: st.DataObject) -> None:
    """What goes in comes out, whatever the counts of tokens, sequences, rows, groups and blocks."""
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    widths = data.draw(st.lists(st.integers(1, 3), max_size=3))
    numbers = st.integers(-(2**31), 2**31 - 1)

    def column(length: int) -> list[int]:
        return data.draw(st.lists(numbers, min_size=length, max_size=length))

    num_tokens = sum(counts)
    columns = {
        "token_ids": column(num_tokens),
        "positions": column(num_tokens),
        "query_starts": [0, *accumulate(counts)],
        "context_lens": column(len(counts)),
        "logit_rows": column(data.draw(st.integers(0, 3))),
        "state_reads": column(len(counts)),
        "state_writes": column(len(counts)),
        "slots": [column(num_tokens) for _ in widths],
        "block_tables": [[column(width) for _ in counts] for width in widths],
    }
    batch = ForwardBatch.of(data.draw(st.integers(1, 64)), **columns)
    for name, expected in columns.items():
        found = getattr(batch, name)
        values = [found(group).tolist() for group in range(len(widths))] if callable(found) else found.tolist()
        assert values == expected, name


@pytest.mark.skipif(unavailable_reason() is not None, reason="no native executor")
def test_the_extension_has_the_same_columns() -> None:
    from karat.machine.extension import native

    assert native().step_columns() == [column.name for column in (*COLUMNS, *GROUP_COLUMNS)]


WRONG: dict[str, tuple[str, Callable[[], ForwardBatch]]] = {
    "positions restart at the chunk": ("do not continue", lambda: good(positions=[0, 1, 2, 6])),
    "positions shifted by one": ("do not continue", lambda: good(positions=[4, 5, 6, 6])),
    "a position frozen": ("do not continue", lambda: good(positions=[3, 4, 4, 6])),
    "written to the wrong slot": ("slots ≠", lambda: good(slots=[23, 8, 10, 2])),
    "a slot of another sequence": ("slots ≠", lambda: good(slots=[23, 8, 2, 9])),
    "a slot of another group": ("slots ≠", lambda: good(slots_1=GOOD["slots"][0])),
    "two tokens in one slot": (
        "one slot",
        lambda: good(
            token_ids=[7, 8, 9, 9, 1],
            positions=[3, 4, 5, 6, 6],
            query_starts=[0, 4, 5],
            context_lens=[7, 7],
            slots=[23, 0, 1, 2, 2],
            slots_1=[7, 8, 9, 10, 18],
            block_tables=[[5, 0, -1], [3, 0, -1]],
        ),
    ),
    "context without the new tokens": ("context_lens ≠", lambda: good(context_lens=[3, 6])),
    "a block outside": (
        "outside the cache",
        lambda: good(block_tables=[[6, 2, -1], [3, 0, -1]], slots=[27, 8, 9, 2]),
    ),
    "a block outside a smaller group": (
        "outside the cache",
        lambda: good(block_tables_1=[[1, 5], [-1, 4]], slots_1=[7, 20, 21, 18]),
    ),
    "a block outside where nobody sees it": ("outside the cache", lambda: good(block_tables_1=[[1, 2], [5, 4]])),
    "a used entry of the table left out": (
        "outside the cache",
        lambda: good(block_tables=[[-1, 2, -1], [3, 0, -1]], slots=[-1, 8, 9, 2]),
    ),
    "an entry left out where there is no window": (
        "outside the cache",
        lambda: good(block_tables=[[5, 2, -1], [-1, 0, -1]]),
    ),
    "an entry left out that the window sees": (
        "outside the cache",
        lambda: good(block_tables_1=[[-1, 2], [-1, 4]], slots_1=[-1, 8, 9, 18]),
    ),
    "an unused entry of the table set": ("unused", lambda: good(block_tables=[[5, 2, 1], [3, 0, -1]])),
    "a table too short": ("ends before", lambda: good(block_tables=[[5], [3]])),
    "tables for other sequences": ("block_tables: 2 numbers for 4", lambda: good(block_tables=[[5, 2]])),
    "rows of a table of different lengths": ("block_tables: 3 numbers", lambda: good(block_tables=[[5, 2], [3]])),
    "a token outside the vocabulary": ("vocabulary", lambda: good(token_ids=[7, 8, 10, 1])),
    "a negative token": ("vocabulary", lambda: good(token_ids=[7, -1, 9, 1])),
    "a row twice": ("logit_rows", lambda: good(logit_rows=[2, 2])),
    "a row beyond": ("logit_rows", lambda: good(logit_rows=[2, 4])),
    "bounds that leave tokens out": ("query_starts", lambda: good(query_starts=[0, 2, 3])),
    "a sequence without tokens": ("query_starts", lambda: good(query_starts=[0, 4, 4])),
    "64-bit numbers": ("int32", lambda: ForwardBatch(good().flat.astype(np.int64))),
    "numbers in two dimensions": ("int32", lambda: ForwardBatch(good().flat[None])),
    "a number too many": ("columns have", lambda: ForwardBatch(np.append(good().flat, np.int32(0)))),
    "a number too few": ("columns have", lambda: ForwardBatch(good().flat[:-1])),
    "arrays of different lengths": ("positions: 3 numbers for 4", lambda: good(positions=[3, 4, 5])),
    "a column too many": ("columns of a batch: state", lambda: good(state=[1, 2])),
    "no tokens": (
        "empty",
        lambda: good(token_ids=[], positions=[], slots=[], slots_1=[], query_starts=[0, 0, 0], logit_rows=[]),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_batch(what: str) -> None:
    message, make = WRONG[what]
    with pytest.raises(AssertionError, match=message):
        validate(make())


def with_states(reads: list[int], writes: list[int], cached_lens: list[int] = CACHED) -> None:
    batch = good(state_reads=reads, state_writes=writes)
    batch.validate(cached_lens=cached_lens, caches=CACHES, vocab_size=10, num_states=4)


def test_states() -> None:
    with_states([0, 3], [2, 1])
    start = good(
        token_ids=[7, 8, 9, 1],
        positions=[0, 1, 2, 6],
        context_lens=[3, 7],
        slots=[20, 21, 22, 2],
        slots_1=[4, 5, 6, 18],
        block_tables=[[5, -1, -1], [3, 0, -1]],
        block_tables_1=[[1, -1], [-1, 4]],
        state_reads=[-1, 3],
        state_writes=[0, 1],
    )
    start.validate(cached_lens=[0, 6], caches=CACHES, vocab_size=10, num_states=4)


@pytest.mark.parametrize(
    ("reads", "writes", "message"),
    [
        ([0, -1], [2, 1], "state_reads ≠ cache length"),
        ([0, 3], [2, 4], "outside the slots"),
        ([0, 4], [2, 1], "outside the slots"),
        ([0, 3], [2, -1], "outside the slots"),
        ([0, 3], [2, 2], "two sequences write"),
        ([0, 3], [0, 1], "read and written"),
        ([0, 3], [3, 1], "read and written"),
    ],
)
def test_wrong_states(reads: list[int], writes: list[int], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        with_states(reads, writes)


def test_a_state_of_a_model_without() -> None:
    with pytest.raises(AssertionError, match="without states"):
        validate(good(state_writes=[0, 1]))


@pytest.mark.parametrize("caches", [CACHES[:1], (*CACHES, (24, None))])
def test_other_cache_groups(caches: Any) -> None:
    with pytest.raises(AssertionError, match="other cache groups"):
        validate(good(), caches=caches)


@pytest.mark.parametrize("cached", [[2, 6], [3, 5], [3]])
def test_a_cache_of_another_length(cached: list[int]) -> None:
    """The stale or forgotten token: positions say one thing, the cache another."""
    with pytest.raises(AssertionError, match="context_lens ≠ cache length"):
        validate(good(), cached_lens=cached)
