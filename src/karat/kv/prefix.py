"""Which full blocks hold which tokens, so that sequences with the same beginning share them. Pure bookkeeping.

K and V of a position depend on its token and on all tokens before it. So a full block is known by its tokens and the
block before it, which is known in the same way: a chain from the beginning of the text. The key is that pair itself,
compared by value, not a hash of it that two texts might have in common.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

_BEGINNING = 0  # stands for the block before the first


@dataclass(frozen=True, slots=True)
class _Entry:
    """A block that can be found. `identity` is given once and never again, as block numbers are."""

    identity: int
    parent: int  # identity of the block before
    token_ids: tuple[int, ...]


class PrefixIndex:
    """Blocks by content. A block is in it once at most, and so is a content; every block's parent is in it too."""

    def __init__(self) -> None:
        self._identities = count(_BEGINNING + 1)
        self._entries: dict[int, _Entry] = {}  # by block; a parent always comes before its children
        self._blocks: dict[tuple[int, tuple[int, ...]], int] = {}  # by parent and tokens

    def __contains__(self, block: int) -> bool:
        return block in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, parent: int | None, token_ids: Sequence[int]) -> int | None:
        """The block that holds these tokens after block `parent` (None: at the beginning); None if there is none."""
        identity = self._identity(parent)
        return None if identity is None else self._blocks.get((identity, tuple(token_ids)))

    def add(self, block: int, parent: int | None, token_ids: Sequence[int]) -> None:
        """Make a block findable, if its parent is; its content must be new."""
        identity = self._identity(parent)
        if identity is None:
            return
        entry = _Entry(next(self._identities), identity, tuple(token_ids))
        key = entry.parent, entry.token_ids
        assert block not in self._entries and key not in self._blocks, f"block {block}: there already"
        self._entries[block] = entry
        self._blocks[key] = block

    def remove(self, block: int) -> None:
        """Forget a block that is no other's parent."""
        entry = self._entries.pop(block)
        del self._blocks[entry.parent, entry.token_ids]

    def remove_with_descendants(self, blocks: Iterable[int]) -> list[int]:
        """Forget those of `blocks` that are here, and all that continue them; which these were."""
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
        """Raise AssertionError unless contents and blocks are one to one, and every parent is there."""
        keys = {block: (entry.parent, entry.token_ids) for block, entry in self._entries.items()}
        assert {key: block for block, key in keys.items()} == self._blocks, "contents and blocks are not one to one"
        assert len(self._blocks) == len(keys), "one content under two blocks"
        known = {_BEGINNING}
        for block, entry in self._entries.items():
            assert entry.parent in known, f"block {block} can never be found: its parent is gone"
            assert entry.identity not in known, f"block {block} has another's identity"
            known.add(entry.identity)

    def is_child(self, block: int, parent: int | None) -> bool:
        """Whether a block that is here continues `parent`."""
        return self._entries[block].parent == self._identity(parent)

    def _identity(self, block: int | None) -> int | None:
        if block is None:
            return _BEGINNING
        entry = self._entries.get(block)
        return entry.identity if entry else None
