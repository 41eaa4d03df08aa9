"""PrefixIndex: full blocks by their tokens, so that sequences with the same beginning share them. Bookkeeping only.

K and V of a position depend on its token and on all tokens before it. So the key of a full block is its tokens and the
identity of the block before it. Keys are compared by value; there is no hash that two texts could share. The salt takes
the place of the block before the first, so texts of different salts (tenants, adapters, images) share no block.

    salt <- block 5: [The, cat, sat, on] <- block 2: [a, mat, and, …]
                                         <- block 9: [the, roof, and, …]
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

Salt = str | None


@dataclass(frozen=True, slots=True)
class _Entry:
    """A block that can be found. `identity` is used once only, unlike the number of a block."""

    identity: int
    parent: int | Salt  # identity of the block before; of a first block the salt
    token_ids: tuple[int, ...]


class PrefixIndex:
    """Blocks by content. Each block and each content occurs at most once; every block's parent is in the index."""

    def __init__(self) -> None:
        self._identities = count()
        self._entries: dict[int, _Entry] = {}  # by block; a parent always comes before its children
        self._blocks: dict[tuple[int | Salt, tuple[int, ...]], int] = {}  # by parent and tokens

    def __contains__(self, block: int) -> bool:
        return block in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, parent: int | None, token_ids: Sequence[int], salt: Salt = None) -> int | None:
        """The block that holds these tokens after block `parent` (None: at the beginning); None if there is none."""
        if parent is None:
            return self._blocks.get((salt, tuple(token_ids)))
        entry = self._entries.get(parent)
        return None if entry is None else self._blocks.get((entry.identity, tuple(token_ids)))

    def identity(self, block: int) -> int | None:
        """The identity of a block, unique for all time, while the block is in the index; else None."""
        entry = self._entries.get(block)
        return None if entry is None else entry.identity

    def add(self, block: int, parent: int | None, token_ids: Sequence[int], salt: Salt = None) -> None:
        """Make a block findable if its parent is findable. Its content must be new."""
        before: int | Salt = salt
        if parent is not None:
            if parent not in self._entries:
                return
            before = self._entries[parent].identity
        entry = _Entry(next(self._identities), before, tuple(token_ids))
        key = entry.parent, entry.token_ids
        assert block not in self._entries and key not in self._blocks, f"block {block}: there already"
        self._entries[block] = entry
        self._blocks[key] = block

    def remove(self, block: int) -> None:
        """Remove a block that is no other block's parent."""
        entry = self._entries.pop(block)
        del self._blocks[entry.parent, entry.token_ids]

    def remove_with_descendants(self, blocks: Iterable[int]) -> list[int]:
        """Remove those of `blocks` that are in the index, and all their continuations. Returns the removed blocks."""
        roots, lost = set(blocks), set[int]()
        gone = []
        for block, entry in self._entries.items():
            if block in roots or entry.parent in lost:
                lost.add(entry.identity)
                gone.append(block)
        for block in gone:
            self.remove(block)
        return gone

    def check(self) -> None:
        """Raise AssertionError unless contents and blocks are one to one and every parent is in the index."""
        keys = {block: (entry.parent, entry.token_ids) for block, entry in self._entries.items()}
        assert {key: block for block, key in keys.items()} == self._blocks, "contents and blocks are not one to one"
        assert len(self._blocks) == len(keys), "one content under two blocks"
        known = set[int]()
        for block, entry in self._entries.items():
            is_known = not isinstance(entry.parent, int) or entry.parent in known
            assert is_known, f"block {block} can never be found: its parent is gone"
            assert entry.identity not in known, f"block {block} has another's identity"
            known.add(entry.identity)

    def is_child(self, block: int, parent: int | None, salt: Salt = None) -> bool:
        """Whether a block of the index continues `parent`. With None: whether it begins a text of this salt."""
        return self._entries[block].parent == (salt if parent is None else self.identity(parent))
