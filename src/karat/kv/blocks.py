"""BlockPool: which blocks of the KV cache hold which positions of which sequence. Bookkeeping only, without arrays.

Paging follows PagedAttention (Kwon et al., arXiv 2309.06180). Layers that keep the same are a cache group (see
karat.kv.groups), with blocks of its own and a block table for every sequence. A block has block_size slots. Position p
of a sequence is in slot table[p // block_size] * block_size + p % block_size. Sequences with the same first tokens may
share their first blocks (karat.kv.prefix):

    block_size 4       positions   0 1 2 3 | 4 5 6 7 | 8 9
    sequence A, table  [5, 2, 7]   block 5 | block 2 | block 7       position 9: slot 7 * 4 + 1 = 29
    sequence B, table  [5, 2, 0]   block 5 | block 2 | block 0       blocks 5 and 2 are shared, and full

In a group with a window a table begins with GIVEN_BACK for blocks that no later token sees (karat.kv.sizes).

Layers with a state have no blocks. A sequence has slots for its state beside its tables (karat.kv.states), and begins
with blocks of others only where there is a snapshot of the state after them. A model of such layers alone has no group;
its texts are cut into blocks all the same, which name the snapshots.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from karat.errors import CapacityError
from karat.kv.beginnings import Beginnings
from karat.kv.group_blocks import GIVEN_BACK, GroupBlocks
from karat.kv.prefix import Chain, PrefixIndex, PrefixNode, Salt
from karat.kv.sizes import GroupSize
from karat.kv.states import StateSlots

BLOCK_SIZE = 16  # tokens, by default
NODES_PER_BLOCK = 8  # the most nodes of the index for each block; a node takes half a KiB
NODES_PER_SNAPSHOT = 128  # and for each snapshot: so many lie between two of a long text
_UNBOUNDED = 2**62  # tokens, where no group bounds them


@dataclass(slots=True)
class _Held:
    """A sequence: its block tables by group, all of one length, and how many of its positions are written.

    `end` is the node of the last of its first `num_told` blocks, whose tokens were told: the others cannot be found.
    """

    tables: list[list[int]]
    cached_len: int
    salt: Salt
    end: PrefixNode | None
    num_told: int


class BlockPool:
    """The blocks of all cache groups. In its group a block is empty, held (in one or several tables), or kept.

        empty  -- reserve  --> held    for new tokens
        kept   -- reserve  --> held    evicted for new tokens: the block freed least recently goes first
        kept   -- allocate --> held    found by its content
        held   -- free     --> kept    if it can be found by its content, else empty
        held   -- commit   --> kept    likewise, where no later token of the sequence sees it

    A step is `reserve` (blocks for the new tokens), the forward pass, `commit` (the tokens are written). `free` ends a
    sequence. A full block whose tokens `commit` was given can be found by its content while it is held or kept. Only
    full blocks are in several tables, and their slots are never written again. The blocks that a sequence gets depend
    only on the calls before. Unknown sequences raise KeyError. Sequences of different salts never share a block.

    With `states` (layers that keep a state, and this pool's alone) a step also reads and writes `state_slots`, and
    `commit` counts the written one. `keep_state` makes a snapshot of what is committed.

    The index has nodes whose blocks were all given back and evicted, on the way to others (karat.kv.beginnings). Kept
    blocks of groups with windows are evicted while it has more than NODES_PER_BLOCK nodes for
    each block; then it has no more, or only nodes on the way to what running sequences hold.
    """

    def __init__(self, sizes: Sequence[GroupSize], block_size: int, states: StateSlots | None = None) -> None:
        assert (sizes or states) and block_size > 0, f"{len(sizes)} groups of blocks of {block_size}"
        self.sizes = tuple(sizes)
        self.block_size = block_size
        self.num_blocks = sum(size.num_blocks for size in sizes)
        self._index = PrefixIndex(len(sizes), block_size)
        self._groups = [GroupBlocks(size, number, block_size, self._index) for number, size in enumerate(sizes)]
        self._windowed = [group for group in self._groups if group.size.window is not None]
        self.states = states
        self._max_nodes = NODES_PER_BLOCK * self.num_blocks
        if states is not None:
            self._max_nodes += NODES_PER_SNAPSHOT * states.max_snapshots
        self._held: dict[int, _Held] = {}
        self._beginnings = Beginnings(self._index, self._groups, states, block_size)

    def anew(self) -> "BlockPool":
        """An empty pool of the same sizes."""
        states = self.states
        return BlockPool(self.sizes, self.block_size, None if states is None else states.anew())

    @property
    def num_free(self) -> int:
        """Blocks that `reserve` can take, of all groups together: empty or kept."""
        return sum(group.num_free for group in self._groups)

    @property
    def num_kept(self) -> int:
        """Blocks that no sequence holds and that can be found by content, of all groups together."""
        return sum(group.num_kept for group in self._groups)

    @property
    def num_seqs(self) -> int:
        """Sequences that are allocated."""
        return len(self._held)

    def blocks_for(self, num_tokens: int) -> int:
        """The length of the block tables of a sequence of `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def find(self, token_ids: Sequence[int], limit: int, salt: Salt = None) -> Chain:
        """What a text can begin with: full blocks of its first `limit` tokens."""
        chain = Chain(token_ids, limit, salt)
        self.follow(chain)
        return chain

    def follow(self, chain: Chain) -> int:
        """The number of blocks that the text can begin with now. It costs the blocks that changed, and a window."""
        return self._beginnings.follow(chain)

    def found(self, chain: Chain, group: int) -> list[int]:
        """The block table that a sequence begins with. `chain` has just been followed."""
        return self._groups[group].found(chain.path[: chain.num_found])

    def has_room(
        self, num_tokens: int, chain: Chain | None, running: Iterable[tuple[int, int]], step_tokens: int
    ) -> bool:
        """Whether a new sequence of `num_tokens` tokens that begins with `chain` fits beside running ones, to the end.

        `running` are the ids of sequences, and the tokens that each is to grow to. Steps compute at most `step_tokens`
        tokens of a sequence.
        """
        growing = [(self._held[seq_id], length) for seq_id, length in running]
        for group in self._groups:
            needed = group.cost(num_tokens, [] if chain is None else chain.path[: chain.num_found], step_tokens)
            for held, length in growing:
                needed += group.growth(held.tables[group.number], held.cached_len, length, step_tokens)
            if needed > group.num_free:
                return False
        return True

    def allocate(self, seq_id: int, chain: Chain | None = None) -> None:
        """Start a sequence with the blocks that `follow` has just found for it, or with none."""
        assert seq_id not in self._held, f"sequence {seq_id} is allocated already"
        num_found = chain.num_found if chain else 0
        tables = [self.found(chain, number) if chain else [] for number in range(len(self._groups))]
        for group, table in zip(self._groups, tables, strict=True):
            for block in table[group.first_seen(num_found * self.block_size) :]:
                group.hold(block)
        end = chain.path[num_found - 1] if chain and num_found else None
        if end is not None:
            end.num_ends += 1
        if self.states is not None:
            self.states.allocate(seq_id, end)
        salt = chain.salt if chain else None
        self._held[seq_id] = _Held(tables, num_found * self.block_size, salt, end, num_found)

    def room(self, seq_id: int) -> int:
        """Tokens that `reserve` can take for this sequence now."""
        held = self._held[seq_id]
        if not self._groups:
            return _UNBOUNDED
        num_free = min(group.num_free for group in self._groups)
        return (len(held.tables[0]) + num_free) * self.block_size - held.cached_len

    def reserve(self, seq_id: int, num_tokens: int) -> None:
        """Extend the block tables to hold `num_tokens` beyond the cached ones; CapacityError if blocks run out."""
        held = self._held[seq_id]
        num_new = self.blocks_for(held.cached_len + num_tokens) - min(map(len, held.tables), default=_UNBOUNDED)
        if num_new <= 0:
            return
        for group in self._groups:
            if num_new > group.num_free:
                raise CapacityError(
                    f"sequence {seq_id} needs {num_new} more KV blocks, and {group.num_free} of "
                    f"{group.size.num_blocks} are free; ask `room` first"
                )
        for group, table in zip(self._groups, held.tables, strict=True):
            table += (group.take() for _ in range(num_new))

    def commit(self, seq_id: int, num_tokens: int, token_ids: Sequence[int] | None = None) -> None:
        """Count `num_tokens` reserved tokens as written, and give back the blocks that no later token sees.

        With `token_ids` (all tokens of the sequence so far), blocks that are full now can be found by content. If a
        block with the same content can be found already, it replaces the sequence's own, which becomes empty.
        """
        held, size = self._held[seq_id], self.block_size
        before = held.cached_len
        held.cached_len += num_tokens
        reserved = min(map(len, held.tables), default=_UNBOUNDED) * size
        assert held.cached_len <= reserved, f"sequence {seq_id}: more committed than reserved"
        if self.states is not None and num_tokens:
            self.states.commit(seq_id)
        if token_ids is not None:
            assert held.cached_len <= len(token_ids), f"sequence {seq_id}: more committed than there are tokens"
            for place in range(before // size, held.cached_len // size):
                self._publish(held, place, token_ids[place * size : (place + 1) * size])
        for group in self._windowed:
            table = held.tables[group.number]
            for place in range(group.first_seen(before), group.first_seen(held.cached_len)):
                group.release(table[place])
                table[place] = GIVEN_BACK
        self._bound_index()

    def keep_state(self, seq_id: int, *, passing: bool = False) -> None:
        """Keep the state of a sequence for texts that begin alike, if it ends with a block that can be found.

        `passing` is for the sequence itself (karat.kv.states).
        """
        held, states = self._held[seq_id], self.states
        node = held.end
        assert states is not None, "no layer keeps a state"
        if node is None or not node.is_findable or held.num_told * self.block_size != held.cached_len:
            return
        gone = states.keep(seq_id, node, passing=passing)
        node.has_snapshot = states.has(node)
        if isinstance(gone, PrefixNode):
            self._drop_snapshot(gone)

    def use_state(self, chain: Chain, num_tokens: int) -> None:
        """The state after the last block of a text's first `num_tokens` tokens, if there is one, is the last to go."""
        num_blocks = min(num_tokens // self.block_size, len(chain.path))
        if self.states is not None and num_blocks and chain.path[num_blocks - 1].has_snapshot:
            self.states.use(chain.path[num_blocks - 1])

    def state_slots(self, seq_id: int) -> tuple[int | None, int | None]:
        """The slots of states that the next step of this sequence reads (None: there is no state yet) and writes."""
        return (None, None) if self.states is None else self.states.step(seq_id)

    def free(self, seq_id: int) -> None:
        """End a sequence. Blocks that no other sequence holds are free at once.

        The last block counts as freed first. So a block is never evicted before its continuations, and the beginnings
        of texts, which several texts share, stay longest.
        """
        held = self._held.pop(seq_id)
        if self.states is not None:
            self.states.free(seq_id)
        for group, table in zip(self._groups, held.tables, strict=True):
            for place in range(len(table) - 1, group.first_seen(held.cached_len) - 1, -1):
                group.release(table[place])
        if held.end is not None:
            held.end.num_ends -= 1
            self._index.drop_unneeded(held.end)
        self._bound_index()

    def forget(self, seq_id: int) -> None:
        """Make the blocks of a sequence, and all their continuations, unfindable: their K and V must not be used.

        Nor must the states after them.
        """
        end = self._held[seq_id].end
        if end is not None and end.is_findable:
            *_, first = end.path()
            for node in self._index.remove_with_descendants(first):
                for group in self._groups:
                    group.forget(node)
                if node.has_snapshot:
                    self._drop_snapshot(node)

    def cached_len(self, seq_id: int) -> int:
        """The number of positions in the cache: 0 … cached_len - 1."""
        return self._held[seq_id].cached_len

    def table(self, seq_id: int, group: int) -> Sequence[int]:
        """The block table (not to be changed): one entry for each block_size positions, reserved ones included.

        In a group with a window it is GIVEN_BACK for blocks that no token from cached_len on sees, and for no others.
        """
        return self._held[seq_id].tables[group]

    def slots(self, seq_id: int, group: int, start: int, stop: int) -> list[int]:
        """Slots of positions start … stop - 1, which must be reserved and not given back."""
        table, size = self._held[seq_id].tables[group], self.block_size
        return [table[position // size] * size + position % size for position in range(start, stop)]

    def check(self) -> None:
        """Raise AssertionError unless every block is empty, kept or held, and counts, tables and index agree."""
        self._index.check(Counter(seq.end for seq in self._held.values() if seq.end is not None))
        for group in self._groups:
            group.check([seq.tables[group.number] for seq in self._held.values()], self._index.nodes())
        on_the_way = set[PrefixNode]()
        for seq_id, seq in self._held.items():
            path = [] if seq.end is None else list(seq.end.path())[::-1]
            assert len(path) == seq.num_told, f"sequence {seq_id}: its blocks are no chain"
            assert all(node.salt == seq.salt for node in path), f"sequence {seq_id}: another's salt"
            on_the_way.update(path)
            for group, table in zip(self._groups, seq.tables, strict=True):
                assert len(table) == len(seq.tables[0]), f"sequence {seq_id}: its tables differ in length"
                assert seq.cached_len <= len(table) * self.block_size, f"sequence {seq_id} ends beyond its blocks"
                given_back = [place for place, block in enumerate(table) if block == GIVEN_BACK]
                seen = group.first_seen(seq.cached_len)
                assert given_back == list(range(seen)), f"sequence {seq_id} does not hold what its next token sees"
                for block in table[seq.cached_len // self.block_size :]:
                    is_own = group.is_own(block)
                    assert is_own, f"sequence {seq_id} will write to block {block}, which is not its own alone"
                for node, block in list(zip(path, table, strict=False))[seen:]:
                    is_chain = not node.is_findable or node.blocks[group.number] == block
                    assert is_chain, f"sequence {seq_id}: its blocks are no chain"
        assert len(self._index) <= max(self._max_nodes, len(on_the_way)), "the index has too many nodes"
        kept = [node for node in self._index.nodes() if node.has_snapshot]
        if self.states is None:
            assert not kept, "snapshots of no state"
            return
        self.states.check()
        assert len(kept) == self.states.num_snapshots and all(map(self.states.has, kept)), "snapshots ≠ nodes"
        for seq_id, seq in self._held.items():
            is_begun = self.states.step(seq_id)[0] is not None
            assert is_begun == (seq.cached_len > 0), f"sequence {seq_id}: a state of other tokens"
        assert self.states.num_seqs == len(self._held), "states of other sequences"

    def _drop_snapshot(self, node: PrefixNode) -> None:
        assert self.states is not None
        self.states.drop(node)
        node.has_snapshot = False
        self._index.drop_unneeded(node)

    def _publish(self, held: _Held, place: int, content: Sequence[int]) -> None:
        """Make a full block findable in all groups, if all before it can be found."""
        if place != held.num_told or (held.end is not None and not held.end.is_findable):
            return
        node = self._index.after(held.end, content, held.salt)
        node.num_ends += 1
        if held.end is not None:
            held.end.num_ends -= 1
        held.end, held.num_told = node, place + 1
        for group, table in zip(self._groups, held.tables, strict=True):
            table[place] = group.publish(table[place], node)

    def _bound_index(self) -> None:
        """Evict kept blocks of groups with windows, and then snapshots, while the index has too many nodes.

        Other groups have none without a block.
        """
        while len(self._index) > self._max_nodes:
            group = max(self._windowed, key=lambda group: group.num_kept, default=None)
            oldest = None if self.states is None else self.states.oldest
            if group is not None and group.num_kept:
                group.evict()
            elif isinstance(oldest, PrefixNode):
                self._drop_snapshot(oldest)
            else:
                return
