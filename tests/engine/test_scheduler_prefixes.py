"""Sequences that begin with the same tokens: what they compute, what they wait for, and what they hold.

Covers: karat.kv.prefix.
"""

from typing import Any

import pytest

from karat.kv.sizes import GroupSize
from tests.engine.schedules import compute, make, sequence, sizes, text


def test_a_prompt_begins_with_the_blocks_of_one_before() -> None:
    scheduler = make(share_prefixes=True)
    scheduler.add(text(0, "abcdefghij"))
    compute(scheduler, scheduler.schedule(), done=lambda seq: True)
    scheduler.add(text(1, "abcdefghxyz"))
    scheduler.add(text(2, "abcdx"))
    scheduler.add(text(3, "bcdefghij"))
    assert sizes(scheduler.schedule()) == {1: 3, 2: 1, 3: 9}
    assert scheduler.num_found_tokens == 12
    scheduler.check()


def test_the_last_token_is_computed_even_where_all_are_found() -> None:
    scheduler = make(share_prefixes=True)
    for seq_id, num_computed in enumerate([8, 4, 4]):
        seq = text(seq_id, "abcdefgh", 2)
        scheduler.add(seq)
        chunks = scheduler.schedule()
        assert sizes(chunks) == {seq_id: num_computed} and list(seq.wanted(num_computed)) == [7]
        compute(scheduler, chunks, done=lambda seq: True)
        assert scheduler.blocks.num_kept == 2, "the block that was computed twice is kept once"


def test_positions_whose_logits_are_wanted_are_computed() -> None:
    scheduler = make(share_prefixes=True, max_prompt_logits=100)
    scheduler.add(text(0, "abcdefghij"))
    compute(scheduler, scheduler.schedule(), done=lambda seq: True)
    reader = text(1, "abcdefghij", prompt_logits=True)
    scheduler.add(reader)
    assert sizes(scheduler.schedule()) == {1: 10} and list(reader.wanted(10)) == list(range(10))
    again = text(2, "abcdefghij", prompt_logits=True)
    again.num_read = 6  # before it was preempted
    scheduler.remove(reader)
    scheduler.add(again)
    assert sizes(scheduler.schedule()) == {2: 6} and list(again.wanted(6)) == list(range(6, 10))


def test_choices_of_a_request_share_the_blocks_of_the_prompt() -> None:
    """The others wait for the first, and then compute only what is no full block."""
    scheduler = make(share_prefixes=True)
    seqs = [text(seq_id, "abcdefghij", 5) for seq_id in range(4)]
    for seq in seqs:
        scheduler.add(seq)
    for expected in ({0: 10}, {0: 1, 1: 2, 2: 2, 3: 2}):
        chunks = scheduler.schedule()
        assert sizes(chunks) == expected
        compute(scheduler, chunks)
        scheduler.check()
    tables = [list(scheduler.blocks.table(seq.seq_id, 0)) for seq in seqs]
    assert len({tuple(table[:2]) for table in tables}) == 1 and len({table[2] for table in tables}) == 4
    assert scheduler.blocks.num_free == 16 - 2 - 4


def test_a_prompt_waits_only_for_a_block_that_it_can_use() -> None:
    scheduler = make(share_prefixes=True, num_blocks=64, max_num_batched_tokens=12, max_num_seqs=6)
    scheduler.add(text(0, "abcdefghijklmnopqr", 9))
    scheduler.add(text(1, "abcdxyz", 9))
    chunks = scheduler.schedule()
    assert sizes(chunks) == {0: 12}, "no room, and 1 would wait"
    compute(scheduler, chunks)
    chunks = scheduler.schedule()
    assert sizes(chunks) == {0: 6, 1: 3}, "what 1 can use is there, whatever 0 still has to compute"
    compute(scheduler, chunks)
    scheduler.add(text(2, "abcde", 9))
    scheduler.add(text(3, "123", 9))
    scheduler.add(text(4, "123", 9))
    scheduler.add(text(5, "1234", 9))
    assert sizes(scheduler.schedule()) == {0: 1, 1: 1, 2: 1, 3: 3, 4: 3, 5: 3}, "a full block is nobody's to wait for"


def test_a_preempted_sequence_finds_what_is_left_of_its_blocks() -> None:
    scheduler = make(num_blocks=6, block_size=4, share_prefixes=True)
    old, young = text(0, "abcdefg", 17), text(1, "1234567", 8)
    scheduler.add(old)
    scheduler.add(young)
    while not scheduler.num_preemptions:
        compute(scheduler, scheduler.schedule())
        scheduler.check()
    assert young.num_computed == 0 and scheduler.num_found_tokens == 0
    num_kept = scheduler.blocks.num_kept
    assert num_kept == 2, "one was taken for the older one, its last"
    scheduler.remove(old)
    assert sizes(scheduler.schedule()) == {1: len(young.token_ids) - 8}
    assert scheduler.num_found_tokens == young.num_computed == 8


def test_room_is_counted_without_what_is_shared() -> None:
    scheduler = make(num_blocks=7, block_size=4, share_prefixes=True, max_num_batched_tokens=40)
    first = text(0, "abcdefgh1", 3)
    scheduler.add(first)
    compute(scheduler, scheduler.schedule())
    scheduler.add(text(1, "abcdefgh23456", 3))
    assert sizes(scheduler.schedule()) == {0: 1, 1: 5}, "2 of its 4 blocks are there; 1 of 4 is spoken for"
    # Kept blocks are free ones; who takes them takes room.
    scheduler = make(num_blocks=7, block_size=4, share_prefixes=True, max_num_batched_tokens=40)
    scheduler.add(text(0, "abcdefgh1"))
    compute(scheduler, scheduler.schedule(), done=lambda seq: True)
    scheduler.add(text(1, "123456789", 3))
    compute(scheduler, scheduler.schedule())
    scheduler.add(text(2, "abcdefgh23456", 3))
    assert sizes(scheduler.schedule()) == {1: 1}, "3 are held, 1 is spoken for, and 3 are left for 4"


def test_what_is_removed_as_wrong_is_not_found() -> None:
    scheduler = make(share_prefixes=True)
    for seq_id, (forget, num_computed) in enumerate([(True, 10), (False, 10), (True, 2), (False, 10)]):
        seq = text(seq_id, "abcdefghij", 3)
        scheduler.add(seq)
        chunks = scheduler.schedule()
        assert sizes(chunks) == {seq_id: num_computed}
        compute(scheduler, chunks)
        scheduler.remove(seq, forget=forget)
        scheduler.check()


# Windows


def test_a_prompt_waits_for_the_blocks_of_a_window_and_begins_after_them() -> None:
    """A running sequence computes what comes next, and has given back what the one that waits would see before it."""
    scheduler = make(64, 4, 4, 16, 8, True, GroupSize(30, 6))
    scheduler.add(text(0, "abcdefgh" * 8, 9))
    scheduler.add(text(1, "abcdefgh" * 7 + "xyz", 9))
    for expected in ({0: 16}, {0: 16}, {0: 16}, {0: 16, 1: 0}, {0: 1, 1: 3}):
        chunks = scheduler.schedule()
        assert sizes(chunks) == {seq_id: num_tokens for seq_id, num_tokens in expected.items() if num_tokens}
        compute(scheduler, chunks)
        scheduler.check()
    assert list(scheduler.blocks.table(1, 1)[:12]) == [-1] * 12 and scheduler.num_found_tokens == 56


def test_a_prefix_whose_window_is_gone_is_computed_anew() -> None:
    """All of the prompt's blocks are in the group without a window, which does not help."""
    scheduler = make(64, 4, 4, 16, 8, True, GroupSize(5, 6))
    scheduler.add(text(0, "abcdefgh" * 8, 30))
    for _ in range(24):
        compute(scheduler, scheduler.schedule())
    scheduler.add(text(1, "abcdefgh" * 7 + "xyz", 9))
    scheduler.remove(scheduler._running[0])
    assert sizes(scheduler.schedule()) == {1: 16} and scheduler.num_found_tokens == 0
    scheduler.check()


def test_a_sequence_of_any_length_is_admitted_where_a_window_has_room_for_its_steps() -> None:
    scheduler = make(1000, 4, 4, 16, 8, False, GroupSize(14, 6))
    for seq_id in range(3):
        scheduler.add(sequence(seq_id, 100, 4))
    steps = []
    while scheduler.num_running or scheduler.num_waiting:
        chunks = scheduler.schedule()
        steps.append(len(chunks))
        compute(scheduler, chunks, done=lambda seq: len(seq.token_ids) == seq.max_len)
        scheduler.check()
    assert scheduler.num_preemptions == 0 and max(steps) == 2, "one in prefill holds 7 blocks at most, one in decode 4"


# Salts


def test_a_sequence_that_shares_nothing_finds_nothing_and_leaves_nothing() -> None:
    scheduler = make(share_prefixes=True, num_blocks=64, max_num_batched_tokens=64, max_num_seqs=5)
    for seq_id, shares in enumerate([True, False, False, True]):
        seq = text(seq_id, "abcdefghij", 3)
        seq.shares = shares
        scheduler.add(seq)
    chunks = scheduler.schedule()
    assert sizes(chunks) == {0: 10, 1: 10, 2: 10}, "only 3 waits for 0"
    compute(scheduler, chunks)
    scheduler.remove(chunks[1].seq)
    assert scheduler.blocks.num_kept == 0
    scheduler.check()
    assert sizes(scheduler.schedule()) == {0: 1, 2: 1, 3: 2}


def test_sequences_of_different_salts_share_nothing() -> None:
    scheduler = make(share_prefixes=True, num_blocks=64, max_num_batched_tokens=64, max_num_seqs=5)
    for seq_id, salt in enumerate([None, "a", "b", "a", ""]):
        seq = text(seq_id, "abcdefghij", 3)
        seq.salt = salt
        scheduler.add(seq)
    chunks = scheduler.schedule()
    assert sizes(chunks) == {0: 10, 1: 10, 2: 10}, "3 waits for 1, which has its salt, and for nobody else"
    compute(scheduler, chunks)
    scheduler.check()
    assert sizes(scheduler.schedule()) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 10}
    tables = [set(scheduler.blocks.table(seq_id, 0)) for seq_id in range(5)]
    assert len(tables[1] & tables[3]) == 2
    assert not any(tables[i] & tables[j] for i in range(5) for j in range(i) if {i, j} != {1, 3})


# What waiting costs


class Counted(list[int]):
    """Tokens that count how many of them are looked at."""

    num_seen = 0

    def __getitem__(self, place: Any) -> Any:
        got = super().__getitem__(place)
        Counted.num_seen += len(got) if isinstance(place, slice) else 1
        return got


@pytest.mark.parametrize("reason", ["no room", "a prefix under way"])
def test_a_step_that_the_first_in_line_waits_costs_nothing_of_its_prompt(reason: str) -> None:
    long = "abcdefgh" * 100
    num_blocks = 410 if reason == "no room" else 1000
    scheduler = make(share_prefixes=True, num_blocks=num_blocks, max_num_batched_tokens=8, max_prompt_logits=4)
    if reason == "no room":  # half of the prompt is there, and the blocks of the other half are taken
        scheduler.add(text(0, long[:400]))
        for _ in range(50):
            compute(scheduler, scheduler.schedule(), done=lambda seq: len(seq.token_ids) == seq.num_computed)
        scheduler.add(text(1, "x" * 1000, 100))
        for _ in range(126):
            compute(scheduler, scheduler.schedule())
    else:
        scheduler.add(text(1, long, prompt_logits=True))  # which leaves some of the budget of tokens
        compute(scheduler, scheduler.schedule())
    head = text(2, long + "z" * 60)
    head.token_ids = Counted(head.token_ids)
    scheduler.add(head)
    scheduler.schedule()
    seen = []
    for _ in range(40):
        Counted.num_seen = 0
        chunks = scheduler.schedule()
        assert list(sizes(chunks)) == [1], "the first in line waits"
        compute(scheduler, chunks)
        seen.append(Counted.num_seen)
    assert max(seen) <= 5 * scheduler.blocks.block_size
    scheduler.check()
