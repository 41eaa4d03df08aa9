"""From chunks to a batch: every array by hand, and the check of positions against the cache."""

import pytest

from karat.engine.scheduling.batch_building import build_batch
from karat.engine.scheduling.scheduler import Chunk
from karat.engine.scheduling.sequence import Sequence
from karat.kv.blocks import BlockPool
from karat.kv.sizes import GroupSize


def pool_with(
    *cached: int, block_size: int = 4, extra: int = 3, windowed: tuple[GroupSize, ...] = ()
) -> tuple[BlockPool, list[Sequence]]:
    """Sequences of which `cached` tokens each are in the cache, and blocks for `extra` more."""
    pool = BlockPool([GroupSize(16), *windowed], block_size)
    sequences = []
    for seq_id, num_cached in enumerate(cached):
        token_ids = [10 * seq_id + i for i in range(num_cached + extra)]
        pool.allocate(seq_id)
        pool.reserve(seq_id, num_cached)
        pool.commit(seq_id, num_cached)
        pool.reserve(seq_id, extra)
        num_tokens = len(token_ids)
        sequences.append(Sequence(seq_id, token_ids, num_tokens, num_tokens, num_cached, num_read=num_tokens - 1))
    return pool, sequences


def test_arrays() -> None:
    pool, (a, b, c) = pool_with(3, 0, 8)
    batch = build_batch([Chunk(a, 2), Chunk(b, 3), Chunk(c, 3)], pool, vocab_size=100)
    assert batch.token_ids.tolist() == [3, 4, 10, 11, 12, 28, 29, 30]
    assert batch.positions.tolist() == [3, 4, 0, 1, 2, 8, 9, 10]
    assert batch.query_starts.tolist() == [0, 2, 5, 8]
    assert batch.context_lens.tolist() == [5, 3, 11]
    assert batch.logit_rows.tolist() == [4, 7], "b and c have their last token in, a has not"
    table = [list(pool.table(seq_id, 0)) for seq_id in range(3)]
    assert batch.block_tables(0).tolist() == [[*table[0], -1], [*table[1], -1, -1], table[2]]
    assert batch.slots(0).tolist() == pool.slots(0, 0, 3, 5) + pool.slots(1, 0, 0, 3) + pool.slots(2, 0, 8, 11)


def test_every_cache_group_has_its_slots_and_tables() -> None:
    """A window of 5 at position 8 of the second sequence begins with position 4: its first block was given back."""
    pool, (a, b) = pool_with(3, 8, windowed=(GroupSize(9, 5), GroupSize(7)))
    batch = build_batch([Chunk(a, 2), Chunk(b, 3)], pool, vocab_size=100)
    assert batch.num_groups == 3
    for group in range(3):
        tables = [list(pool.table(seq_id, group)) for seq_id in range(2)]
        assert batch.block_tables(group).tolist() == [[*tables[0], -1], tables[1]]
        assert batch.slots(group).tolist() == pool.slots(0, group, 3, 5) + pool.slots(1, group, 8, 11)
    assert [batch.block_tables(group)[1, 0] == -1 for group in range(3)] == [False, True, False]


def test_prompt_logits_are_rows_of_the_batch() -> None:
    pool, (a, b) = pool_with(2, 1)
    a.num_read, b.num_read = 2, 3
    assert build_batch([Chunk(a, 2), Chunk(b, 1)], pool, vocab_size=100).logit_rows.tolist() == [0, 1]
    assert build_batch([Chunk(a, 3), Chunk(b, 3)], pool, vocab_size=100).logit_rows.tolist() == [0, 1, 2, 5]


def test_blocks_reserved_beyond_the_chunk_are_left_out() -> None:
    """As after a step that was interrupted between reservation and forward pass."""
    pool, (a,) = pool_with(0)
    pool.reserve(0, 12)
    assert build_batch([Chunk(a, 3)], pool, vocab_size=100).block_tables(0).tolist() == [[pool.table(0, 0)[0], -1, -1]]


@pytest.mark.parametrize("slip", [-1, 1])
def test_positions_that_do_not_continue_the_cache_are_caught(slip: int) -> None:
    pool, (a,) = pool_with(5)
    a.num_computed += slip
    with pytest.raises(AssertionError, match="cache length"):
        build_batch([Chunk(a, 2)], pool, vocab_size=100)


@pytest.mark.parametrize(
    ("prompt_len", "num_tokens", "computed", "read", "wanted"),
    [
        (5, 3, 0, 0, [0, 1, 2]),
        (5, 5, 0, 0, [0, 1, 2, 3, 4]),
        (5, 2, 3, 3, [3, 4]),
        (5, 1, 4, 4, [4]),
        (5, 2, 0, 3, []),  # computed anew after a preemption
        (5, 4, 0, 3, [3]),
        (5, 5, 0, 4, [4]),
        (5, 4, 0, 4, []),
        (1, 1, 0, 0, [0]),
    ],
)
def test_wanted_positions(prompt_len: int, num_tokens: int, computed: int, read: int, wanted: list[int]) -> None:
    seq = Sequence(0, [0] * prompt_len, prompt_len, prompt_len, computed, read)
    assert list(seq.wanted(num_tokens)) == wanted
    seq.num_read = prompt_len - 1
    last = [prompt_len - 1] if computed + num_tokens == prompt_len else []
    assert list(seq.wanted(num_tokens)) == last
