"""The block pool against a model of it: plain lists of slots, checked after every operation."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from karat.errors import CapacityError
from karat.kv.blocks import BlockPool


class PoolMachine(RuleBasedStateMachine):
    """Keeps, for each sequence, the slot of every reserved position and the number of cached ones."""

    @initialize(num_blocks=st.integers(1, 12), block_size=st.integers(1, 5))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.slots: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}
        self.next_id = 0

    @rule()
    def allocate(self) -> None:
        self.pool.allocate(self.next_id)
        self.slots[self.next_id] = []
        self.cached[self.next_id] = 0
        self.next_id += 1

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.slots)))

    def reserved(self, seq: int) -> int:
        """Positions that the sequence's blocks can hold."""
        return len(self.pool.table(seq)) * self.pool.block_size

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def reserve(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        room = self.pool.room(seq)
        num_tokens = data.draw(st.integers(0, room))
        before = self.slots[seq]
        self.pool.reserve(seq, num_tokens)
        stop = max(len(before), self.cached[seq] + num_tokens)
        self.slots[seq] = self.pool.slots(seq, 0, stop)
        assert self.slots[seq][: len(before)] == before, "a position moved to another slot"
        needed = max(len(before), self.cached[seq] + num_tokens)
        assert self.reserved(seq) - needed < self.pool.block_size, "more blocks than needed"

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), beyond=st.integers(1, 3))
    def reserve_too_much(self, data: st.DataObject, beyond: int) -> None:
        seq = self.pick(data)
        free = self.pool.num_free
        with pytest.raises(CapacityError):
            self.pool.reserve(seq, self.pool.room(seq) + beyond)
        assert self.pool.num_free == free, "a refused reservation took blocks"

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        num_tokens = data.draw(st.integers(0, len(self.slots[seq]) - self.cached[seq]))
        self.pool.commit(seq, num_tokens)
        self.cached[seq] += num_tokens

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        free, held = self.pool.num_free, len(self.pool.table(seq))
        self.pool.free(seq)
        assert self.pool.num_free == free + held
        del self.slots[seq], self.cached[seq]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        everything = [slot for slots in self.slots.values() for slot in slots]
        assert len(set(everything)) == len(everything), "two positions share a slot"
        assert all(0 <= slot < self.pool.num_blocks * self.pool.block_size for slot in everything)
        for seq, cached in self.cached.items():
            assert self.pool.cached_len(seq) == cached
            assert self.pool.slots(seq, 0, len(self.slots[seq])) == self.slots[seq]
        assert self.pool.num_seqs == len(self.slots)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_slots_follow_the_block_table() -> None:
    pool = BlockPool(num_blocks=4, block_size=3)
    pool.allocate(1)
    pool.reserve(1, 5)
    first, second = pool.table(1)
    assert pool.slots(1, 0, 5) == [first * 3, first * 3 + 1, first * 3 + 2, second * 3, second * 3 + 1]
    assert pool.slots(1, 2, 4) == [first * 3 + 2, second * 3]


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (3, 1), (4, 2), (6, 2)])
def test_blocks_for(num_tokens: int, num_blocks: int) -> None:
    assert BlockPool(4, 3).blocks_for(num_tokens) == num_blocks


def test_more_committed_than_reserved_is_caught() -> None:
    pool = BlockPool(4, 3)
    pool.allocate(1)
    pool.reserve(1, 2)
    with pytest.raises(AssertionError, match="more committed"):
        pool.commit(1, 4)


def test_what_is_freed_is_used_again() -> None:
    pool = BlockPool(2, 4)
    for seq in range(10):
        pool.allocate(seq)
        pool.reserve(seq, 8)
        assert pool.num_free == 0
        pool.free(seq)
        assert pool.num_free == 2


@pytest.mark.parametrize("break_it", ["lose", "double", "overrun"])
def test_check_finds_what_is_wrong(break_it: str) -> None:
    pool = BlockPool(4, 2)
    for seq in (1, 2):
        pool.allocate(seq)
        pool.reserve(seq, 2)
    pool.check()
    if break_it == "lose":
        pool._free.pop()
    elif break_it == "double":
        pool._held[1].table[0] = pool._held[2].table[0]
    else:
        pool._held[1].cached_len = 3
    with pytest.raises(AssertionError):
        pool.check()
