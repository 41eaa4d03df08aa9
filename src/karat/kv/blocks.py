"""BlockPool: which block of the KV cache holds which positions of which sequence. Bookkeeping only, without arrays.

Paging follows PagedAttention (Kwon et al., arXiv 2309.06180). The cache has num_blocks blocks of block_size slots.
Position p of a sequence is in slot table[p // block_size] * block_size + p % block_size; `table` is the block table of
the sequence. Sequences with the same first tokens may share their first blocks (karat.kv.prefix):

    block_size 4       positions   0 1 2 3 | 4 5 6 7 | 8 9
    sequence A, table  [5, 2, 7]   block 5 | block 2 | block 7       position 9: slot 7 * 4 + 1 = 29
    sequence B, table  [5, 2, 0]   block 5 | block 2 | block 0       blocks 5 and 2 are shared, and full
"""

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from karat.errors import CapacityError
from karat.kv.prefix import PrefixIndex, Salt

BLOCK_SIZE = 16  # tokens, by default


@dataclass(slots=True)
class _Held:
    """A sequence's block table, the number of positions whose K and V are written, and its salt."""

    table: list[int] = field(default_factory=list)
    cached_len: int = 0
    salt: Salt = None


class Chain:
    """The blocks found so far that a text can begin with. `BlockPool.follow` brings it up to date.

    `limit` is in tokens: no block beyond it is looked for.
    """

    def __init__(self, token_ids: Sequence[int], limit: int, salt: Salt = None) -> None:
        self.token_ids = token_ids
        self.limit = limit  # tokens
        self.salt = salt
        self.blocks: list[int] = []
        self.identities: list[int | None] = []  # of `blocks` when they were found: a different one means new content


class BlockPool:
    """A fixed number of blocks. Each is empty, held (in the tables of one or several sequences), or kept.

        empty  -- reserve  --> held    for new tokens
        kept   -- reserve  --> held    evicted for new tokens: the block freed least recently goes first
        kept   -- allocate --> held    found by its content
        held   -- free     --> kept    if it can be found by its content, else empty

    A step is `reserve` (blocks for the new tokens), the forward pass, `commit` (the tokens are written). `free` ends a
    sequence. A full block whose tokens `commit` was given can be found by its content while it is held or kept. Only
    full blocks are in several tables, and their slots are never written again. The blocks that a sequence gets depend
    only on the calls before. Unknown sequences raise KeyError. Sequences of different salts never share a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0 and block_size > 0, f"{num_blocks} blocks of {block_size}"
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._empty = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is likely in the CPU's cache
        self._kept: OrderedDict[int, None] = OrderedDict()  # held by no sequence, can be found; oldest first
        self._num_holders = [0] * num_blocks
        self._index = PrefixIndex()
        self._held: dict[int, _Held] = {}

    @property
    def num_free(self) -> int:
        """Blocks that `reserve` can take: empty or kept."""
        return len(self._empty) + self.num_kept

    @property
    def num_kept(self) -> int:
        """Blocks that no sequence holds and that can be found by content."""
        return len(self._kept)

    @property
    def num_seqs(self) -> int:
        """Sequences that are allocated."""
        return len(self._held)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` tokens needs."""
        return -(-num_tokens // self.block_size)

    def find(self, token_ids: Sequence[int], limit: int, salt: Salt = None) -> list[int]:
        """Full blocks that hold the first tokens of `token_ids`, in order: at most `limit` tokens."""
        return self.follow(Chain(token_ids, limit, salt))

    def follow(self, chain: Chain) -> list[int]:
        """The result of `find` for this chain. Costs only the blocks that changed since the last call.

        If a block can be found, so can all blocks before it: checking the last one suffices.
        """
        blocks, identities, size = chain.blocks, chain.identities, self.block_size
        while blocks and self._index.identity(blocks[-1]) != identities[-1]:
            blocks.pop()
            identities.pop()
        while (stop := (len(blocks) + 1) * size) <= chain.limit:
            content = chain.token_ids[stop - size : stop]
            block = self._index.find(blocks[-1] if blocks else None, content, chain.salt)
            if block is None:
                break
            blocks.append(block)
            identities.append(self._index.identity(block))
        return blocks

    def cost(self, num_tokens: int, found: Sequence[int] = ()) -> int:
        """Free blocks that a new sequence of `num_tokens` tokens takes if it begins with `found`."""
        # A sequence that holds a block holds those before it too.
        num_held = bisect_left(found, True, key=lambda block: self._num_holders[block] == 0)
        return self.blocks_for(num_tokens) - num_held

    def allocate(self, seq_id: int, found: Sequence[int] = (), salt: Salt = None) -> None:
        """Start a sequence with the blocks that `find` has just returned for it, or with none."""
        assert seq_id not in self._held, f"sequence {seq_id} is allocated already"
        for block in found:
            self._hold(block)
        self._held[seq_id] = _Held(list(found), len(found) * self.block_size, salt)

    def room(self, seq_id: int) -> int:
        """Tokens that `reserve` can take for this sequence now."""
        held = self._held[seq_id]
        return (len(held.table) + self.num_free) * self.block_size - held.cached_len

    def reserve(self, seq_id: int, num_tokens: int) -> None:
        """Extend the block table to hold `num_tokens` beyond the cached ones; CapacityError if blocks run out."""
        held = self._held[seq_id]
        num_new = self.blocks_for(held.cached_len + num_tokens) - len(held.table)
        if num_new > self.num_free:
            raise CapacityError(
                f"sequence {seq_id} needs {num_new} more KV blocks, and {self.num_free} of {self.num_blocks} are "
                "free; ask `room` first"
            )
        held.table += (self._take() for _ in range(num_new))

    def commit(self, seq_id: int, num_tokens: int, token_ids: Sequence[int] | None = None) -> None:
        """Count `num_tokens` reserved tokens as written.

        With `token_ids` (all tokens of the sequence so far), blocks that are full now can be found by content. If a
        block with the same content can be found already, it replaces the sequence's own, which becomes empty.
        """
        held = self._held[seq_id]
        first = held.cached_len // self.block_size
        held.cached_len += num_tokens
        assert held.cached_len <= len(held.table) * self.block_size, f"sequence {seq_id}: more committed than reserved"
        if token_ids is not None:
            assert held.cached_len <= len(token_ids), f"sequence {seq_id}: more committed than there are tokens"
            for place in range(first, held.cached_len // self.block_size):
                self._publish(held, place, token_ids)

    def free(self, seq_id: int) -> None:
        """End a sequence. Blocks that no other sequence holds are free at once.

        The last block counts as freed first. So a block is never evicted before its continuations, and the beginnings
        of texts, which several texts share, stay longest.
        """
        for block in reversed(self._held.pop(seq_id).table):
            self._release(block)

    def forget(self, seq_id: int) -> None:
        """Make the blocks of a sequence, and all their continuations, unfindable: their K and V must not be used."""
        for block in self._index.remove_with_descendants(self._held[seq_id].table):
            if block in self._kept:
                del self._kept[block]
                self._empty.append(block)

    def cached_len(self, seq_id: int) -> int:
        """The number of positions in the cache: 0 … cached_len - 1."""
        return self._held[seq_id].cached_len

    def table(self, seq_id: int) -> Sequence[int]:
        """The block table (not to be changed): one entry for each block_size positions, reserved ones included."""
        return self._held[seq_id].table

    def slots(self, seq_id: int, start: int, stop: int) -> list[int]:
        """Slots of positions start … stop - 1, which must be reserved."""
        table, size = self._held[seq_id].table, self.block_size
        return [table[position // size] * size + position % size for position in range(start, stop)]

    def check(self) -> None:
        """Raise AssertionError unless every block is empty, kept or held, and counts, tables and index agree."""
        holders = Counter(block for seq in self._held.values() for block in seq.table)
        everything = sorted([*self._empty, *self._kept, *holders])
        assert everything == list(range(self.num_blocks)), "a block is lost, or in two states"
        assert self._num_holders == [holders[block] for block in range(self.num_blocks)], "holders ≠ tables"
        self._index.check()
        assert all(block in self._index for block in self._kept), "a kept block cannot be found"
        assert not any(block in self._index for block in self._empty), "an empty block can be found"
        for seq_id, seq in self._held.items():
            assert seq.cached_len <= len(seq.table) * self.block_size, f"sequence {seq_id} ends beyond its blocks"
            num_full = seq.cached_len // self.block_size
            for block in seq.table[num_full:]:
                is_own = holders[block] == 1 and block not in self._index
                assert is_own, f"sequence {seq_id} will write to block {block}, which is not its own alone"
            for place, block in enumerate(seq.table):
                before = seq.table[place - 1] if place else None
                if block in self._index:
                    assert self._index.is_child(block, before, seq.salt), f"sequence {seq_id}: its blocks are no chain"

    def _publish(self, held: _Held, place: int, token_ids: Sequence[int]) -> None:
        """Make a full block of a table findable, or replace it by the findable block with the same content."""
        table = held.table
        before, own = table[place - 1] if place else None, table[place]
        content = token_ids[place * self.block_size : (place + 1) * self.block_size]
        other = self._index.find(before, content, held.salt)
        if other is None:
            self._index.add(own, before, content, held.salt)
        else:
            self._hold(other)
            table[place] = other
            self._release(own)

    def _take(self) -> int:
        """A block for new content, held once: an empty one, else the one kept longest."""
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._kept.popitem(last=False)
            self._index.remove(block)
        self._num_holders[block] = 1
        return block

    def _hold(self, block: int) -> None:
        if self._num_holders[block] == 0:
            del self._kept[block]
        self._num_holders[block] += 1

    def _release(self, block: int) -> None:
        self._num_holders[block] -= 1
        if self._num_holders[block] == 0:
            if block in self._index:
                self._kept[block] = None
            else:
                self._empty.append(block)


def check_fits(num_tokens: int, num_blocks: int, block_size: int) -> None:
    """Raise CapacityError for a sequence of `num_tokens` tokens that does not fit into a cache of so many blocks."""
    if -(-num_tokens // block_size) > num_blocks:
        raise CapacityError(
            f"the request may grow to {num_tokens} tokens in the KV cache, which holds {num_blocks * block_size} "
            f"({num_blocks} blocks of {block_size}); shorten the prompt or lower max_tokens, or give the cache more "
            "room"
        )
