"""The block pool against a model of it: what every slot holds, checked after every operation."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from karat.errors import CapacityError
from karat.kv.blocks import BlockPool


class PoolMachine(RuleBasedStateMachine):
    """Keeps the tokens of every sequence and what was last written to every slot: the token and all before it."""

    @initialize(num_blocks=st.integers(1, 12), block_size=st.integers(1, 4))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.tokens: dict[int, list[int]] = {}  # two kinds, so that beginnings agree often
        self.cached: dict[int, int] = {}
        self.written: dict[int, tuple[int, ...]] = {}  # by slot
        self.next_id = 0

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.tokens)))

    @rule(tokens=st.lists(st.integers(0, 1), max_size=16), limit=st.integers(0, 20), share=st.booleans())
    def allocate(self, tokens: list[int], limit: int, share: bool) -> None:
        seq, pool, size = self.next_id, self.pool, self.pool.block_size
        limit = min(limit, len(tokens))
        found = pool.find(tokens, limit) if share else []
        start = len(found) * size
        assert start <= limit and len(set(found)) == len(found)
        for position in range(start):
            slot = found[position // size] * size + position % size
            assert self.written[slot] == tuple(tokens[: position + 1]), "a block with something else in it"
        cost, free = pool.cost(len(tokens), found), pool.num_free
        held = {block for other in self.tokens for block in pool.table(other)}
        assert cost == pool.blocks_for(len(tokens)) - len(held & set(found))
        pool.allocate(seq, found)
        assert pool.cached_len(seq) == start
        assert free - pool.num_free == len(set(found) - held) == cost - (pool.blocks_for(len(tokens)) - len(found))
        self.tokens[seq], self.cached[seq] = list(tokens), start
        self.next_id += 1

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def reserve(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        num_tokens = data.draw(st.integers(0, self.pool.room(seq)))
        before = list(self.pool.table(seq))
        self.pool.reserve(seq, num_tokens)
        after = list(self.pool.table(seq))
        assert after[: len(before)] == before, "a position moved to another slot"
        assert len(after) == max(len(before), self.pool.blocks_for(self.cached[seq] + num_tokens))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), beyond=st.integers(1, 3))
    def reserve_too_much(self, data: st.DataObject, beyond: int) -> None:
        seq = self.pick(data)
        free = self.pool.num_free
        with pytest.raises(CapacityError):
            self.pool.reserve(seq, self.pool.room(seq) + beyond)
        assert self.pool.num_free == free, "a refused reservation took blocks"

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), publish=st.sampled_from([True, True, True, False]))
    def commit(self, data: st.DataObject, publish: bool) -> None:
        """A step: write to the slots of what comes next, then say so."""
        seq = self.pick(data)
        tokens, start = self.tokens[seq], self.cached[seq]
        room = len(self.pool.table(seq)) * self.pool.block_size - start
        num_tokens = data.draw(st.integers(0, room))
        more = max(0, start + num_tokens - len(tokens))
        tokens += data.draw(st.lists(st.integers(0, 1), min_size=more, max_size=more))
        readers = {other: self.context(other) for other in self.tokens if other != seq}
        for position, slot in enumerate(self.pool.slots(seq, start, start + num_tokens), start):
            self.written[slot] = tuple(tokens[: position + 1])
        assert readers == {other: self.context(other) for other in readers}, "written into another's context"
        self.pool.commit(seq, num_tokens, tokens if publish else None)
        self.cached[seq] += num_tokens

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), forget=st.booleans())
    def free(self, data: st.DataObject, forget: bool) -> None:
        seq = self.pick(data)
        table = list(self.pool.table(seq))
        if forget:
            free = self.pool.num_free
            self.pool.forget(seq)
            assert self.pool.num_free == free
            self.pool.check()
            full = self.cached[seq] // self.pool.block_size * self.pool.block_size
            assert not set(self.pool.find(self.tokens[seq], full)) & set(table)
        held = {block for other in self.tokens if other != seq for block in self.pool.table(other)}
        free = self.pool.num_free
        self.pool.free(seq)
        assert self.pool.num_free - free == len(set(table) - held)
        del self.tokens[seq], self.cached[seq]

    def context(self, seq: int) -> list[tuple[int, ...]]:
        return [self.written[slot] for slot in self.pool.slots(seq, 0, self.cached[seq])]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        pool.check()
        assert pool.num_seqs == len(self.tokens)
        held = {block for seq in self.tokens for block in pool.table(seq)}
        assert pool.num_free == pool.num_blocks - len(held) and pool.num_kept <= pool.num_free
        own: list[int] = []
        for seq, cached in self.cached.items():
            assert pool.cached_len(seq) == cached
            assert self.context(seq) == [tuple(self.tokens[seq][: i + 1]) for i in range(cached)], "context"
            own += pool.table(seq)[cached // pool.block_size :]
        assert len(set(own)) == len(own), "two sequences will write to one block"


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


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


def test_more_committed_than_there_is_is_caught() -> None:
    pool = BlockPool(4, 3)
    pool.allocate(1)
    pool.reserve(1, 2)
    with pytest.raises(AssertionError, match="more committed than reserved"):
        pool.commit(1, 4)
    pool.allocate(2)
    pool.reserve(2, 3)
    with pytest.raises(AssertionError, match="more committed than there are tokens"):
        pool.commit(2, 3, [5, 6])


def test_what_is_freed_is_used_again() -> None:
    pool = BlockPool(2, 4)
    for seq in range(10):
        pool.allocate(seq)
        pool.reserve(seq, 8)
        assert pool.num_free == 0
        pool.free(seq)
        assert pool.num_free == 2


def pool_of(*texts: str, num_blocks: int = 8, block_size: int = 2) -> BlockPool:
    """Sequences 0, 1, … with these texts, computed one after the other without looking for each other's blocks."""
    pool = BlockPool(num_blocks, block_size)
    for seq, text in enumerate(texts):
        add(pool, seq, text, share=False)
    return pool


def add(pool: BlockPool, seq: int, text: str, *, share: bool = True) -> int:
    """Compute a text, all but what is found; how many of its tokens were found."""
    tokens = ids(text)
    pool.allocate(seq, pool.find(tokens, len(tokens)) if share else ())
    num_found = pool.cached_len(seq)
    pool.reserve(seq, len(tokens) - num_found)
    pool.commit(seq, len(tokens) - num_found, tokens)
    pool.check()
    return num_found


def ids(text: str) -> list[int]:
    return list(text.encode())


def test_only_full_blocks_within_the_limit_are_found() -> None:
    pool = pool_of("abcde")
    table = list(pool.table(0))
    for limit, num_blocks in enumerate([0, 0, 1, 1, 2, 2]):
        assert pool.find(ids("abcde"), limit) == table[:num_blocks]
    assert pool.find(ids("abcdef"), 6) == table[:2], "e alone is not a full block"


def test_a_block_is_its_tokens_and_all_before_them() -> None:
    pool = pool_of("abcd", "xycd")
    assert pool.find(ids("abcd"), 4) == list(pool.table(0))
    assert pool.find(ids("xycd"), 4) == list(pool.table(1))
    assert pool.find(ids("cdab"), 4) == [] and pool.find(ids("abxy"), 4) == list(pool.table(0))[:1]


def test_numbers_of_blocks_that_were_used_again_are_no_key() -> None:
    """A block's child stays unknown when its number comes to hold other tokens, or the same once more."""
    pool = pool_of("abcd", num_blocks=2)
    pool.free(0)
    add(pool, 1, "xyz")
    assert pool.find(ids("xycd"), 4) == list(pool.table(1))[:1]
    pool.free(1)
    add(pool, 2, "ab")
    assert pool.find(ids("abcd"), 4) == list(pool.table(2))


def test_blocks_stay_findable_until_they_are_needed_the_end_of_the_oldest_first() -> None:
    pool = pool_of("abcd", "efgh", num_blocks=6)
    for seq in (1, 0):
        pool.free(seq)
    assert (pool.num_kept, pool.num_free) == (4, 6)
    found = []
    for seq in range(2, 8):
        found.append([len(pool.find(ids(text), 4)) for text in ("abcd", "efgh")])
        pool.allocate(seq)
        pool.reserve(seq, 1)
        pool.check()
    assert found == [[2, 2], [2, 2], [2, 2], [2, 1], [2, 0], [1, 0]]
    assert pool.find(ids("abcd"), 4) == [] and pool.num_kept == 0


def test_what_is_found_again_counts_as_used_last() -> None:
    pool = pool_of("ab", "cd", num_blocks=2)
    pool.free(0)
    pool.free(1)
    add(pool, 2, "ab")
    pool.free(2)
    pool.allocate(3)
    pool.reserve(3, 1)
    assert pool.find(ids("ab"), 2) and not pool.find(ids("cd"), 2)


def test_equal_blocks_computed_side_by_side_become_one() -> None:
    pool = BlockPool(8, 2)
    for seq in (0, 1):
        pool.allocate(seq)
        pool.reserve(seq, 5)
    assert pool.num_free == 2
    for seq in (0, 1):
        pool.commit(seq, 5, ids("abcde"))
        pool.check()
    first, second = list(pool.table(0)), list(pool.table(1))
    assert first[:2] == second[:2] and first[2] != second[2] and pool.num_free == 4
    pool.free(0)
    assert pool.num_free == 5, "what the other holds stays"
    assert pool.find(ids("abcd"), 4) == second[:2]


def test_what_was_not_told_is_not_found_nor_what_comes_after_it() -> None:
    pool = BlockPool(8, 2)
    pool.allocate(0)
    pool.reserve(0, 6)
    pool.commit(0, 2)
    pool.commit(0, 4, ids("abcdef"))
    assert pool.find(ids("abcdef"), 6) == []
    pool.free(0)
    assert pool.num_kept == 0 and pool.num_free == 8


def test_what_is_forgotten_takes_its_continuations_with_it() -> None:
    pool = pool_of("abcd")
    assert add(pool, 1, "abcdef") == 4 and add(pool, 2, "abxy") == 2
    add(pool, 3, "efgh")
    pool.free(1)
    pool.forget(0)
    pool.check()
    assert [len(pool.find(ids(text), len(text))) for text in ("abcdef", "abxy", "efgh")] == [0, 0, 2]
    assert pool.num_kept == 0
    pool.free(0)
    pool.commit(2, 0, ids("abxy"))
    assert add(pool, 4, "abxy") == 0, "computed anew, and found again from then on"
    assert pool.find(ids("abxy"), 4) == list(pool.table(4)) != list(pool.table(2))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda pool: pool._empty.pop(), "lost"),
        (lambda pool: pool._empty.append(pool.table(2)[0]), "two states"),
        (lambda pool: pool._kept.popitem(), "lost"),
        (lambda pool: setattr(pool._held[2], "cached_len", 5), "beyond its blocks"),
        (lambda pool: setattr(pool._held[2], "cached_len", 0), "not its own alone"),
        (lambda pool: pool._held[2].table.reverse(), "not its own alone|no chain"),
        (lambda pool: pool._num_holders.__setitem__(pool.table(2)[0], 2), "holders"),
        (lambda pool: pool._index.remove(next(iter(pool._kept))), "cannot be found"),
        (lambda pool: pool._index.add(pool._empty[-1], None, (9, 9)), "can be found"),
        (lambda pool: pool._index._blocks.popitem(), "one to one"),
        (lambda pool: pool._index.remove(pool.table(2)[0]), "parent is gone"),
    ],
)
def test_check_finds_what_is_wrong(break_it: Callable[[BlockPool], object], message: str) -> None:
    pool = pool_of("abc", "xyzxy", "efgh")
    pool.free(1)
    pool.check()
    break_it(pool)
    with pytest.raises(AssertionError, match=message):
        pool.check()
