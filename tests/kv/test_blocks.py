"""The block pool against a model of it: what every slot holds, checked after every operation.

Covers: karat.kv.beginnings, karat.kv.group_blocks, karat.kv.sizes.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from karat.errors import CapacityError
from karat.kv.blocks import BlockPool
from karat.kv.prefix import Chain, PrefixNode
from karat.kv.sizes import GroupSize, check_fits
from karat.kv.states import StateSlots
from tests.support.drawn import examples

GROUPS = st.lists(st.builds(GroupSize, st.integers(1, 12), st.none() | st.integers(1, 7)), min_size=1, max_size=3)
SIZES = st.tuples(GROUPS, st.none() | st.integers(0, 3)) | st.tuples(st.just([]), st.integers(0, 3))
MAX_SEQS = 5  # with states


class PoolMachine(RuleBasedStateMachine):
    """Keeps the tokens of every sequence and what was last written to every slot: the token and all before it.

    And what was last written to every slot of states: all tokens so far. A model with states alone has no group.
    """

    @initialize(sizes=SIZES, block_size=st.integers(1, 4))
    def start(self, sizes: tuple[list[GroupSize], int | None], block_size: int) -> None:
        groups, num_snapshots = sizes
        self.has_states = num_snapshots is not None
        states = StateSlots(max_num_seqs=MAX_SEQS, max_snapshots=num_snapshots or 0) if self.has_states else None
        self.pool = BlockPool(groups, block_size, states)
        self.groups = range(len(groups))
        self.most = MAX_SEQS if self.has_states else inf
        self.states: dict[int | None, tuple[int, ...] | str] = {None: ()}
        self.tokens: dict[int, list[int]] = {}  # two kinds, so that beginnings agree often
        self.cached: dict[int, int] = {}
        self.written: dict[tuple[int, int], tuple[int, ...]] = {}  # by group and slot
        self.chains: list[Chain] = []
        self.next_id = 0

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.tokens)))

    def seen(self, group: int, position: int) -> int:
        """The first position that the token at `position` sees."""
        window = self.pool.sizes[group].window
        return 0 if window is None else max(0, position - window + 1)

    def held(self, group: int, *, without: int | None = None) -> set[int]:
        tables = (self.pool.table(seq, group) for seq in self.tokens if seq != without)
        return {block for table in tables for block in table if block != -1}

    def num_free(self) -> int:
        held = sum(len(self.held(group)) for group in self.groups)
        return sum(size.num_blocks for size in self.pool.sizes) - held

    @precondition(lambda self: len(self.tokens) < self.most)
    @rule(tokens=st.lists(st.integers(0, 1), max_size=16), limit=st.integers(0, 20), share=st.booleans())
    def allocate(self, tokens: list[int], limit: int, share: bool) -> None:
        seq, pool, size = self.next_id, self.pool, self.pool.block_size
        limit = min(limit, len(tokens))
        chain = pool.find(tokens, limit) if share else None
        num_found = chain.num_found if chain else 0
        start = num_found * size
        assert start <= limit and (chain is None or num_found == longest(pool, chain.path))
        pool.allocate(seq, chain)
        self.tokens[seq], self.cached[seq] = list(tokens), start
        assert pool.cached_len(seq) == start
        for group in self.groups:
            table = list(pool.table(seq, group))
            blocks = table[self.seen(group, start) // size :]
            assert len(table) == num_found and len(set(blocks)) == len(blocks)
        self.next_id += 1

    @precondition(lambda self: 0 < len(self.tokens) < self.most and self.groups)
    @rule(tokens=st.lists(st.integers(0, 1), max_size=16), step=st.integers(1, 8), data=st.data())
    def has_room(self, tokens: list[int], step: int, data: st.DataObject) -> None:
        """Who is told that there is room gets to the end, if the others grow as they said and no more."""
        pool = self.pool
        chain = pool.find(tokens, len(tokens) - 1)
        growing = {seq: self.cached[seq] + data.draw(st.integers(1, 5)) for seq in self.tokens}
        if not tokens or not pool.has_room(len(tokens), chain, growing.items(), step):
            return
        seq, self.next_id = self.next_id, self.next_id + 1
        pool.allocate(seq, chain)
        self.tokens[seq], self.cached[seq] = list(tokens), pool.cached_len(seq)
        for other, stop in [*growing.items(), (seq, len(tokens))]:
            while (num_tokens := min(step, stop - self.cached[other])) > 0:
                assert pool.room(other) >= num_tokens, "there was no room"
                pool.reserve(other, num_tokens)
                self.write(other, num_tokens, data, publish=True)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def reserve(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        num_tokens = data.draw(st.integers(0, min(self.pool.room(seq), 50)))
        before = [list(self.pool.table(seq, group)) for group in self.groups]
        self.pool.reserve(seq, num_tokens)
        for group, table in zip(self.groups, before, strict=True):
            after = list(self.pool.table(seq, group))
            assert after[: len(table)] == table, "a position moved to another slot"
            assert len(after) == max(len(table), self.pool.blocks_for(self.cached[seq] + num_tokens))

    @precondition(lambda self: self.tokens and self.groups)
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
        seq = self.pick(data)
        reserved = len(self.pool.table(seq, 0)) * self.pool.block_size if self.groups else self.cached[seq] + 9
        room = reserved - self.cached[seq]
        self.write(seq, data.draw(st.integers(0, room)), data, publish=publish)

    def write(self, seq: int, num_tokens: int, data: st.DataObject, *, publish: bool) -> None:
        """A step: write to the slots of what comes next, then say so."""
        tokens, start = self.tokens[seq], self.cached[seq]
        more = max(0, start + num_tokens - len(tokens))
        tokens += data.draw(st.lists(st.integers(0, 1), min_size=more, max_size=more))
        readers = {
            (other, group): self.context(other, group) for other in self.tokens if other != seq for group in self.groups
        }
        for group in self.groups:
            for position, slot in enumerate(self.pool.slots(seq, group, start, start + num_tokens), start):
                self.written[group, slot] = tuple(tokens[: position + 1])
        assert readers == {reader: self.context(*reader) for reader in readers}, "written into another's context"
        if self.has_states and num_tokens:
            read, write = self.pool.state_slots(seq)
            assert write is not None and self.states[read] == tuple(tokens[:start]), "another's state"
            self.states[write] = "half of a step"
            if data.draw(st.booleans()):
                assert self.pool.state_slots(seq) == (read, write), "a step that failed is run again"
            self.states[write] = tuple(tokens[: start + num_tokens])
        self.pool.commit(seq, num_tokens, tokens if publish else None)
        self.cached[seq] += num_tokens
        if self.has_states and num_tokens and (how := data.draw(st.sampled_from(["passing", "lasting", ""]))):
            self.pool.keep_state(seq, passing=how == "passing")

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), forget=st.booleans())
    def free(self, data: st.DataObject, forget: bool) -> None:
        seq = self.pick(data)
        tables = [set(self.pool.table(seq, group)) - {-1} for group in self.groups]
        if forget:
            free = self.pool.num_free
            self.pool.forget(seq)
            assert self.pool.num_free == free
            self.pool.check()
            chain = self.pool.find(self.tokens[seq], self.cached[seq])
            assert not any(set(self.pool.found(chain, group)) & tables[group] for group in self.groups)
            # A sequence that had told no block may find the states of another one with its tokens.
            end = self.pool._held[seq].end
            assert end is None or not any(node.is_findable or node.has_snapshot for node in end.path())
        free = self.pool.num_free
        self.pool.free(seq)
        lost = sum(len(table - self.held(group, without=seq)) for group, table in zip(self.groups, tables, strict=True))
        assert self.pool.num_free - free == lost
        del self.tokens[seq], self.cached[seq]

    @rule(tokens=st.lists(st.integers(0, 1), max_size=16))
    def find_later(self, tokens: list[int]) -> None:
        self.chains = [*self.chains[-3:], Chain(tokens, len(tokens))]

    def context(self, seq: int, group: int) -> list[tuple[int, ...]]:
        """What the next token of a sequence sees in a group, itself excluded."""
        cached = self.cached[seq]
        slots = self.pool.slots(seq, group, min(cached, self.seen(group, cached)), cached)
        return [self.written[group, slot] for slot in slots]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, size = self.pool, self.pool.block_size
        pool.check()
        assert pool.num_seqs == len(self.tokens)
        assert pool.num_free == self.num_free() and pool.num_kept <= pool.num_free
        for group in self.groups:
            own: list[int] = []
            for seq, cached in self.cached.items():
                assert pool.cached_len(seq) == cached
                first, table = self.seen(group, cached), pool.table(seq, group)
                texts = [tuple(self.tokens[seq][: i + 1]) for i in range(first, cached)]
                assert self.context(seq, group) == texts, "context"
                assert all(block == -1 for block in table[: first // size]), "a block that nothing reads is held"
                own += table[cached // size :]
            assert len(set(own)) == len(own), "two sequences will write to one block"
        for chain in self.chains:
            assert pool.follow(chain) == pool.find(chain.token_ids, chain.limit).num_found == longest(pool, chain.path)
            assert chain.num_stored >= chain.num_found
            if self.has_states and chain.num_found:
                slot = pool.states._snapshots[chain.path[chain.num_found - 1]]
                assert self.states[slot] == tuple(chain.token_ids[: chain.num_found * size]), (
                    "a state of something else"
                )
            for group in self.groups:
                for place, block in enumerate(pool.found(chain, group)):
                    for position in range(place * size, (place + 1) * size if block != -1 else 0):
                        slot = block * size + position % size
                        assert self.written[group, slot] == tuple(chain.token_ids[: position + 1]), "something else"


def longest(pool: BlockPool, path: Sequence[PrefixNode]) -> int:
    """By its definition: the most nodes such that every group has the blocks that the next token sees.

    And there is a snapshot after them, if the pool has states.
    """

    def is_whole(num: int) -> bool:
        return all(
            path[place].blocks[group] is not None
            for group, size in enumerate(pool.sizes)
            for place in range(num)
            if size.window is None or (place + 1) * pool.block_size > num * pool.block_size - size.window + 1
        ) and (num == 0 or pool.states is None or pool.states.has(path[num - 1]))

    return max(num for num in range(len(path) + 1) if is_whole(num))


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


def test_slots_follow_the_block_table() -> None:
    pool = pool_of(num_blocks=4, block_size=3)
    pool.allocate(1)
    pool.reserve(1, 5)
    first, second = pool.table(1, 0)
    assert pool.slots(1, 0, 0, 5) == [first * 3, first * 3 + 1, first * 3 + 2, second * 3, second * 3 + 1]
    assert pool.slots(1, 0, 2, 4) == [first * 3 + 2, second * 3]


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (3, 1), (4, 2), (6, 2)])
def test_blocks_for(num_tokens: int, num_blocks: int) -> None:
    assert pool_of(num_blocks=4, block_size=3).blocks_for(num_tokens) == num_blocks


def test_more_committed_than_there_is_is_caught() -> None:
    pool = pool_of(num_blocks=4, block_size=3)
    pool.allocate(1)
    pool.reserve(1, 2)
    with pytest.raises(AssertionError, match="more committed than reserved"):
        pool.commit(1, 4)
    pool.allocate(2)
    pool.reserve(2, 3)
    with pytest.raises(AssertionError, match="more committed than there are tokens"):
        pool.commit(2, 3, [5, 6])


def test_what_is_freed_is_used_again() -> None:
    pool = pool_of(num_blocks=2, block_size=4)
    for seq in range(10):
        pool.allocate(seq)
        pool.reserve(seq, 8)
        assert pool.num_free == 0
        pool.free(seq)
        assert pool.num_free == 2


def pool_of(
    *texts: str, num_blocks: int = 8, block_size: int = 2, sizes: Sequence[GroupSize] | None = None
) -> BlockPool:
    """Sequences 0, 1, … with these texts, computed one after the other without looking for each other's blocks."""
    pool = BlockPool(sizes or [GroupSize(num_blocks)], block_size)
    for seq, text in enumerate(texts):
        add(pool, seq, text, share=False)
    return pool


def add(pool: BlockPool, seq: int, text: str, *, share: bool = True) -> int:
    """Compute a text, all but what is found; how many of its tokens were found."""
    tokens = ids(text)
    pool.allocate(seq, pool.find(tokens, len(tokens)) if share else None)
    num_found = pool.cached_len(seq)
    pool.reserve(seq, len(tokens) - num_found)
    pool.commit(seq, len(tokens) - num_found, tokens)
    pool.check()
    return num_found


def blocks_found(pool: BlockPool, token_ids: list[int], limit: int) -> list[int]:
    return pool.found(pool.find(token_ids, limit), 0)


def ids(text: str) -> list[int]:
    return list(text.encode())


def test_only_full_blocks_within_the_limit_are_found() -> None:
    pool = pool_of("abcde")
    table = list(pool.table(0, 0))
    for limit, num_blocks in enumerate([0, 0, 1, 1, 2, 2]):
        assert blocks_found(pool, ids("abcde"), limit) == table[:num_blocks]
    assert blocks_found(pool, ids("abcdef"), 6) == table[:2], "e alone is not a full block"


def test_a_block_is_its_tokens_and_all_before_them() -> None:
    pool = pool_of("abcd", "xycd")
    assert blocks_found(pool, ids("abcd"), 4) == list(pool.table(0, 0))
    assert blocks_found(pool, ids("xycd"), 4) == list(pool.table(1, 0))
    assert blocks_found(pool, ids("cdab"), 4) == [] and blocks_found(pool, ids("abxy"), 4) == list(pool.table(0, 0))[:1]


def test_numbers_of_blocks_that_were_used_again_are_no_key() -> None:
    """A block's child stays unknown when its number comes to hold other tokens, or the same once more."""
    pool = pool_of("abcd", num_blocks=2)
    pool.free(0)
    add(pool, 1, "xyz")
    assert blocks_found(pool, ids("xycd"), 4) == list(pool.table(1, 0))[:1]
    pool.free(1)
    add(pool, 2, "ab")
    assert blocks_found(pool, ids("abcd"), 4) == list(pool.table(2, 0))


def test_blocks_stay_findable_until_they_are_needed_the_end_of_the_oldest_first() -> None:
    pool = pool_of("abcd", "efgh", num_blocks=6)
    for seq in (1, 0):
        pool.free(seq)
    assert (pool.num_kept, pool.num_free) == (4, 6)
    found = []
    for seq in range(2, 8):
        found.append([len(blocks_found(pool, ids(text), 4)) for text in ("abcd", "efgh")])
        pool.allocate(seq)
        pool.reserve(seq, 1)
        pool.check()
    assert found == [[2, 2], [2, 2], [2, 2], [2, 1], [2, 0], [1, 0]]
    assert blocks_found(pool, ids("abcd"), 4) == [] and pool.num_kept == 0


def test_what_is_found_again_counts_as_used_last() -> None:
    pool = pool_of("ab", "cd", num_blocks=2)
    pool.free(0)
    pool.free(1)
    add(pool, 2, "ab")
    pool.free(2)
    pool.allocate(3)
    pool.reserve(3, 1)
    assert blocks_found(pool, ids("ab"), 2) and not blocks_found(pool, ids("cd"), 2)


def test_equal_blocks_computed_side_by_side_become_one() -> None:
    pool = pool_of()
    for seq in (0, 1):
        pool.allocate(seq)
        pool.reserve(seq, 5)
    assert pool.num_free == 2
    for seq in (0, 1):
        pool.commit(seq, 5, ids("abcde"))
        pool.check()
    first, second = list(pool.table(0, 0)), list(pool.table(1, 0))
    assert first[:2] == second[:2] and first[2] != second[2] and pool.num_free == 4
    pool.free(0)
    assert pool.num_free == 5, "what the other holds stays"
    assert blocks_found(pool, ids("abcd"), 4) == second[:2]


def test_what_was_not_told_is_not_found_nor_what_comes_after_it() -> None:
    pool = pool_of()
    pool.allocate(0)
    pool.reserve(0, 6)
    pool.commit(0, 2)
    pool.commit(0, 4, ids("abcdef"))
    assert blocks_found(pool, ids("abcdef"), 6) == []
    pool.free(0)
    assert pool.num_kept == 0 and pool.num_free == 8


def test_what_is_forgotten_takes_its_continuations_with_it() -> None:
    pool = pool_of("abcd")
    assert add(pool, 1, "abcdef") == 4 and add(pool, 2, "abxy") == 2
    add(pool, 3, "efgh")
    pool.free(1)
    pool.forget(0)
    pool.check()
    assert [len(blocks_found(pool, ids(text), len(text))) for text in ("abcdef", "abxy", "efgh")] == [0, 0, 2]
    assert pool.num_kept == 0
    pool.free(0)
    pool.commit(2, 0, ids("abxy"))
    assert add(pool, 4, "abxy") == 0, "computed anew, and found again from then on"
    assert blocks_found(pool, ids("abxy"), 4) == list(pool.table(4, 0)) != list(pool.table(2, 0))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda pool: pool._groups[0]._empty.pop(), "lost"),
        (lambda pool: pool._groups[0]._empty.append(pool.table(2, 0)[0]), "two states"),
        (lambda pool: pool._groups[1]._kept.popitem(), "lost"),
        (lambda pool: setattr(pool._held[2], "cached_len", 5), "beyond its blocks"),
        (lambda pool: setattr(pool._held[2], "cached_len", 0), "not its own alone|does not hold"),
        (lambda pool: pool.table(2, 0).reverse(), "no chain"),
        (lambda pool: pool.table(2, 1).append(pool._groups[1].take()), "differ in length"),
        (lambda pool: pool._held[0].tables[1].__setitem__(0, pool._groups[1].take()), "does not hold"),
        (lambda pool: setattr(pool._held[2], "num_told", 1), "no chain"),
        (lambda pool: setattr(pool._held[2], "salt", "other"), "another's salt"),
        (lambda pool: pool._groups[0]._num_holders.__setitem__(pool.table(2, 0)[0], 2), "holders"),
        (lambda pool: pool._groups[1]._nodes.pop(next(iter(pool._groups[1]._kept))), "cannot be found"),
        (lambda pool: pool._groups[0]._nodes.__setitem__(pool._groups[0]._empty[-1], nodes(pool)[0]), "can be found"),
        (lambda pool: nodes(pool)[0].blocks.__setitem__(1, 0), "one to one"),
        (lambda pool: [group.forget(nodes(pool)[-2]) for group in pool._groups[:1]], "before one is gone|no chain"),
        (lambda pool: pool._index._nodes.__setitem__((None, (9, 9)), nodes(pool)[0]), "one to one"),
        (lambda pool: pool._index._remove(nodes(pool)[-2]), "parent is gone"),
        (lambda pool: pool._index.after(None, (9, 9), None), "nothing needs"),
        (lambda pool: setattr(pool._held[2].end, "num_ends", 0), "miscounted"),
        (lambda pool: setattr(pool, "_max_nodes", 2), "too many nodes"),
    ],
)
def test_check_finds_what_is_wrong(break_it: Callable[[Any], object], message: str) -> None:
    pool = pool_of("abc", "xyzxy", "efgh", sizes=[GroupSize(8), GroupSize(6, 2)])
    pool.free(1)
    pool.check()
    break_it(pool)
    with pytest.raises(AssertionError, match=message):
        pool.check()


def nodes(pool: BlockPool) -> list[PrefixNode]:
    return list(pool._index.nodes())


# Groups with windows


def test_a_group_with_a_window_gives_back_what_no_later_token_sees() -> None:
    """The blocks that a sequence holds after each token: with a window of 5, positions 8 to 12 at position 12."""
    pool = pool_of(sizes=[GroupSize(8), GroupSize(4, 5)])
    pool.allocate(0)
    held = []
    for _ in range(13):
        pool.reserve(0, 1)
        pool.commit(0, 1)
        pool.check()
        held.append([sum(block != -1 for block in pool.table(0, group)) for group in (0, 1)])
    assert [full for full, _ in held] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]
    assert [window for _, window in held] == [1, 1, 2, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3]
    assert list(pool.table(0, 1)[:4]) == [-1] * 4 and pool.num_free == 1 + 1


@pytest.mark.parametrize(("window", "step"), [(1, 1), (4, 1), (5, 3), (64, 16), (63, 17)])
def test_a_window_bounds_the_blocks_of_a_sequence_of_any_length(window: int, step: int) -> None:
    needed = GroupSize(10**6, window).most_held(0, 10**6, step, 16)
    most = 0
    for first in range(1, 17):
        pool = BlockPool([GroupSize(needed, window)], 16)
        pool.allocate(0)
        for num_tokens in [first, *[step] * 60]:
            pool.reserve(0, num_tokens)
            most = max(most, sum(block != -1 for block in pool.table(0, 0)))
            pool.commit(0, num_tokens)
    assert most == needed <= (window + step) // 16 + 2


def test_a_prefix_is_found_where_every_group_has_what_the_next_token_sees() -> None:
    """Windows of 3 tokens: after n blocks of 2 the next token sees the last one of them."""
    pool = pool_of("abcdefgh", sizes=[GroupSize(20), GroupSize(6, 3)])
    pool.free(0)
    assert pool.num_kept == 8 and pool.find(ids("abcdefgh"), 8).num_found == 4
    chain = pool.find(ids("abcdXY"), 6)
    assert chain.num_found == 2 and pool.found(chain, 1)[0] == -1 != pool.found(chain, 1)[1]
    pool.allocate(1)
    found = []
    for num_blocks in (3, 4, 5, 6):  # the window's blocks go: ab's first, gh's last
        pool.reserve(1, 2 * num_blocks)
        pool.check()
        found.append([pool.find(ids(text), 8).num_found for text in ("abXY", "abcdXY", "abcdefXY", "abcdefgh")])
    assert found == [[0, 2, 3, 4], [0, 0, 3, 4], [0, 0, 0, 4], [0, 0, 0, 0]]


def test_what_was_given_back_and_found_again_costs_only_what_is_new() -> None:
    pool = pool_of("abcdefgh", sizes=[GroupSize(20), GroupSize(6, 3)])
    assert [group.num_free for group in pool._groups] == [16, 5]
    assert add(pool, 1, "abcdefghij") == 8
    assert [group.num_free for group in pool._groups] == [15, 4]
    assert pool.table(1, 1)[3] == pool.table(0, 1)[3] or pool.table(1, 1)[3] == -1


@pytest.mark.parametrize("block_size", [1, 4])
def test_the_index_stays_small_where_windows_leave_long_texts(block_size: int) -> None:
    """A text of a window leaves nodes without blocks on the way to its last ones. They are bounded."""
    pool = BlockPool([GroupSize(12, 3 * block_size), GroupSize(12, 2)], block_size)
    most = 0
    for seq in range(40):
        text = [seq, *range(100 * block_size)]
        pool.allocate(seq)
        for start in range(0, 60 * block_size, block_size):
            pool.reserve(seq, block_size)
            pool.commit(seq, block_size, text)
            most = max(most, len(pool._index))
            assert start % 7 or pool.check() is None
        assert pool.find(text, 60 * block_size).num_found == 60
        pool.free(seq)
    assert most <= 8 * 24 and pool.num_kept > 0
    pool.check()


def test_only_running_sequences_make_the_index_larger() -> None:
    pool = BlockPool([GroupSize(3, 2)], 1)
    pool.allocate(0)
    for _ in range(100):
        pool.reserve(0, 1)
        pool.commit(0, 1, range(100))
    assert len(pool._index) == 100 > 8 * 3
    pool.check()
    pool.free(0)
    pool.check()
    assert len(pool._index) == 0 and pool.num_free == 3


def test_a_chain_that_is_followed_costs_what_changed() -> None:
    """The head of the queue asks at every step. A path whose blocks in a window are gone is not searched again."""
    pool = BlockPool([GroupSize(2000), GroupSize(20, 10)], 1)
    text = list(range(1000))
    pool.allocate(0)
    pool.reserve(0, 10)
    for _ in range(99):
        pool.commit(0, 10, text)
        pool.reserve(0, 10)
    pool.free(0)
    pool.allocate(1)
    pool.reserve(1, 15)
    chain = Chain(text, 1000)
    assert pool.follow(chain) == 0 and len(chain.path) == 990

    class Untouched(list[PrefixNode]):
        num_seen = 0

        def __getitem__(self, place: Any) -> Any:
            Untouched.num_seen += 1
            return super().__getitem__(place)

    chain.path = Untouched(chain.path)
    assert pool.follow(chain) == 0 and Untouched.num_seen < 40


# What fits


def test_what_never_fits_is_refused_in_every_group() -> None:
    check_fits(64, [GroupSize(4), GroupSize(3, 20)], 16)
    with pytest.raises(CapacityError, match=r"65 tokens in the KV cache, which holds 64 \(4 blocks of 16\); shorten"):
        check_fits(65, [GroupSize(4), GroupSize(3, 20)], 16)
    check_fits(10**9, [GroupSize(3, 20)], 16)
    with pytest.raises(CapacityError, match=r"may grow to 65 .* 48 at once in layers with a window, which holds 32"):
        check_fits(65, [GroupSize(5), GroupSize(2, 20)], 16)


# States


def test_a_snapshot_whose_window_is_gone_is_no_beginning() -> None:
    """It is where the window's blocks were evicted; those that are there end without a snapshot."""
    pool = BlockPool([GroupSize(20), GroupSize(3, 4)], 2, StateSlots(max_num_seqs=1, max_snapshots=1))
    tokens = list(range(12))
    pool.allocate(0)
    for num_tokens in range(2, 13, 2):
        pool.reserve(0, 2)
        pool.commit(0, 2, tokens)
        if num_tokens == 4:
            pool.keep_state(0)
        chain = pool.find(tokens, 12)
        assert chain.num_stored == num_tokens // 2
        assert chain.num_found == (2 if num_tokens in (4, 6) else 0), "the third block takes the place of the first"
        pool.check()


def test_a_model_of_states_alone_has_room_for_any_text_and_a_bound_of_its_index() -> None:
    pool = BlockPool([], 1, StateSlots(max_num_seqs=1, max_snapshots=2))
    for number in range(4):
        pool.allocate(number)
        tokens = [number] * 1000
        assert pool.room(number) > 10**9
        pool.reserve(number, 1000)
        pool.commit(number, 1000, tokens)
        pool.keep_state(number)
        assert pool.find(tokens, 1000).num_found == 1000, "its own end is on the way"
        pool.free(number)
        assert pool.states is not None and pool.states.num_snapshots == 0, "1,000 nodes are more than 128 for each"
        pool.check()
    pool.allocate(4)
    pool.commit(4, 200, [4] * 200)
    pool.keep_state(4)
    pool.free(4)
    assert pool.find([4] * 300, 300).num_found == 200
    pool.check()
