"""GroupBlocks: the blocks of one cache group: which are empty, held or kept. Bookkeeping only, without arrays."""

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from karat.kv.prefix import PrefixIndex, PrefixNode
from karat.kv.sizes import GroupSize

GIVEN_BACK = -1  # in a block table: no later token sees these positions


class GroupBlocks:
    """Each block is empty, held by so many sequences (`num_holders`), or kept: held by none, and its node findable.

    `number` is the group's in the blocks of a node.
    """

    def __init__(self, size: GroupSize, number: int, block_size: int, index: PrefixIndex) -> None:
        assert size.num_blocks > 0 and (size.window is None or size.window > 0), f"{size}"
        self.size = size
        self.number = number
        self._block_size = block_size
        self._index = index
        self._empty = list(range(size.num_blocks - 1, -1, -1))  # a stack: the last one is likely in the CPU's cache
        self._kept: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._num_holders = [0] * size.num_blocks
        self._nodes: dict[int, PrefixNode] = {}  # of the blocks that can be found

    @property
    def num_free(self) -> int:
        """Blocks that `take` can give: empty or kept."""
        return len(self._empty) + len(self._kept)

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def first_seen(self, position: int) -> int:
        """The place of the first block that the token at `position` sees."""
        return self.size.first_seen(position, self._block_size)

    def found(self, path: Sequence[PrefixNode]) -> list[int]:
        """The block table of a sequence that begins with the blocks of these nodes."""
        first = self.first_seen(len(path) * self._block_size)
        blocks = [block for node in path[first:] if (block := node.blocks[self.number]) is not None]
        assert first + len(blocks) == len(path), "a chain that has changed since it was followed"
        return [GIVEN_BACK] * first + blocks

    def cost(self, num_tokens: int, path: Sequence[PrefixNode], step_tokens: int) -> int:
        """Free blocks that a new sequence that begins with these nodes takes at most, if it may take all.

        Steps compute at most `step_tokens` tokens of a sequence.
        """
        start = len(path) * self._block_size
        first = self.first_seen(start)
        own = -(-num_tokens // self._block_size) - first - self._num_held(path, first)
        return min(own, self._most_held(start, num_tokens, step_tokens), self.size.num_blocks)

    def growth(self, table: Sequence[int], cached_len: int, num_tokens: int, step_tokens: int) -> int:
        """Free blocks that a sequence with this table takes at most until it has `num_tokens` tokens."""
        num_now = len(table) - self.first_seen(cached_len)
        return max(0, self._most_held(cached_len, num_tokens, step_tokens) - num_now)

    def is_own(self, block: int) -> bool:
        """Whether one sequence alone holds the block and nothing finds it, so that it may be written to."""
        return self._num_holders[block] == 1 and block not in self._nodes

    def take(self) -> int:
        """A block for new content, held once: an empty one, else the one that was freed least recently."""
        if not self._empty:
            self.evict()
        block = self._empty.pop()
        self._num_holders[block] = 1
        return block

    def evict(self) -> None:
        """Empty the kept block that was freed least recently."""
        block, _ = self._kept.popitem(last=False)
        self._empty.append(block)
        node = self._nodes.pop(block)
        node.blocks[self.number] = None
        self._index.drop_unneeded(node)

    def hold(self, block: int) -> None:
        if self._num_holders[block] == 0:
            del self._kept[block]
        self._num_holders[block] += 1

    def release(self, block: int) -> None:
        self._num_holders[block] -= 1
        if self._num_holders[block] == 0:
            if block in self._nodes:
                self._kept[block] = None
            else:
                self._empty.append(block)

    def publish(self, own: int, node: PrefixNode) -> int:
        """The block of a node's content: `own`, which a sequence holds and which can be found from now on.

        If the node has a block already, the sequence holds that one instead, and its own becomes empty.
        """
        other = node.blocks[self.number]
        if other is None:
            node.blocks[self.number] = own
            self._nodes[own] = node
            return own
        self.hold(other)
        self.release(own)
        return other

    def forget(self, node: PrefixNode) -> None:
        """Make a node's block unfindable: its K and V must not be used."""
        block, node.blocks[self.number] = node.blocks[self.number], None
        if block is not None:
            del self._nodes[block]
            if block in self._kept:
                del self._kept[block]
                self._empty.append(block)

    def check(self, tables: Sequence[Sequence[int]], nodes: Iterable[PrefixNode]) -> None:
        """Raise AssertionError unless every block is empty, kept or held, and counts, tables and nodes agree.

        `tables` are all tables of the group, `nodes` those of the index, a node after the one before it.
        """
        holders = Counter(block for table in tables for block in table if block != GIVEN_BACK)
        everything = sorted([*self._empty, *self._kept, *holders])
        assert everything == list(range(self.size.num_blocks)), "a block is lost, or in two states"
        assert self._num_holders == [holders[block] for block in range(self.size.num_blocks)], "holders ≠ tables"
        assert all(block in self._nodes for block in self._kept), "a kept block cannot be found"
        assert not any(block in self._nodes for block in self._empty), "an empty block can be found"
        cached = [(block, node) for node in nodes if (block := node.blocks[self.number]) is not None]
        assert len(cached) == len(self._nodes) and dict(cached) == self._nodes, "blocks and nodes are not one to one"
        if self.size.window is None:
            parents = (node.parent for _, node in cached if node.parent is not None)
            assert all(parent.blocks[self.number] is not None for parent in parents), "the block before one is gone"

    def _most_held(self, start: int, stop: int, step_tokens: int) -> int:
        """The most blocks that a sequence holds at once: see GroupSize."""
        return self.size.most_held(start, stop, step_tokens, self._block_size)

    def _is_held(self, node: PrefixNode) -> bool:
        """Whether a sequence holds the block of a node."""
        block = node.blocks[self.number]
        return block is not None and self._num_holders[block] > 0

    def _num_held(self, path: Sequence[PrefixNode], first: int) -> int:
        """How many blocks of a path's nodes a sequence holds, from the node `first` on."""
        if self.size.window is None:  # a sequence that holds a block holds those before it too
            return bisect_left(path, True, first, key=lambda node: not self._is_held(node)) - first
        return sum(map(self._is_held, path[first:]))
