"""Which block of the KV cache holds which positions of which sequence. Pure bookkeeping: no array is touched here.

Paging follows PagedAttention (Kwon et al., arXiv 2309.06180): the cache is num_blocks blocks of block_size slots;
position p of a sequence lies in slot table[p // block_size] * block_size + p % block_size, where `table` is the
sequence's block table.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from karat.errors import CapacityError


@dataclass(slots=True)
class _Held:
    """What one sequence holds: its block table, and the number of positions whose K and V are written."""

    table: list[int] = field(default_factory=list)
    cached_len: int = 0


class BlockPool:
    """A fixed number of blocks, each free or in the table of exactly one sequence.

    A step goes `reserve` (blocks for the new tokens), forward pass, `commit` (they are written now). `free` gives all
    back. Which blocks a sequence gets depends only on the calls before. Unknown sequences raise KeyError.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0 and block_size > 0, f"{num_blocks} blocks of {block_size}"
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is likeliest in a CPU's cache
        self._held: dict[int, _Held] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_seqs(self) -> int:
        return len(self._held)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` tokens takes."""
        return -(-num_tokens // self.block_size)

    def allocate(self, seq_id: int) -> None:
        """Start a sequence that holds nothing yet."""
        assert seq_id not in self._held, f"sequence {seq_id} is allocated already"
        self._held[seq_id] = _Held()

    def room(self, seq_id: int) -> int:
        """Tokens that `reserve` could take now for this sequence."""
        held = self._held[seq_id]
        return (len(held.table) + len(self._free)) * self.block_size - held.cached_len

    def reserve(self, seq_id: int, num_tokens: int) -> None:
        """Extend the block table to hold `num_tokens` beyond the cached ones; CapacityError if blocks run out."""
        held = self._held[seq_id]
        num_new = self.blocks_for(held.cached_len + num_tokens) - len(held.table)
        if num_new > len(self._free):
            raise CapacityError(
                f"sequence {seq_id} needs {num_new} more KV blocks, and {len(self._free)} of {self.num_blocks} are "
                "free; ask `room` first"
            )
        held.table += (self._free.pop() for _ in range(num_new))

    def commit(self, seq_id: int, num_tokens: int) -> None:
        """Count `num_tokens` reserved tokens as written."""
        held = self._held[seq_id]
        held.cached_len += num_tokens
        assert held.cached_len <= len(held.table) * self.block_size, f"sequence {seq_id}: more committed than reserved"

    def free(self, seq_id: int) -> None:
        """End a sequence; all its blocks are free at once."""
        self._free += reversed(self._held.pop(seq_id).table)

    def cached_len(self, seq_id: int) -> int:
        """Positions 0 … cached_len - 1 are in the cache."""
        return self._held[seq_id].cached_len

    def table(self, seq_id: int) -> Sequence[int]:
        """The block table, for reading; one entry for each block_size positions, reserved ones included."""
        return self._held[seq_id].table

    def slots(self, seq_id: int, start: int, stop: int) -> list[int]:
        """Slots of positions start … stop - 1, which must be reserved."""
        table, size = self._held[seq_id].table, self.block_size
        return [table[position // size] * size + position % size for position in range(start, stop)]

    def check(self) -> None:
        """Raise AssertionError unless every block is free or held exactly once and every table fits its sequence."""
        held = [block for seq in self._held.values() for block in seq.table]
        assert sorted(held + self._free) == list(range(self.num_blocks)), "a block is lost, or has two owners"
        for seq_id, seq in self._held.items():
            assert seq.cached_len <= len(seq.table) * self.block_size, f"sequence {seq_id} ends beyond its blocks"
