"""PrefixIndex: full blocks of text by their tokens, so that sequences with the same beginning share what is cached.

K and V of a position depend on its token and on all tokens before it. So the key of a node is its tokens and the node
before it. Keys are compared by value; there is no hash that two texts could share. The salt takes the place of the node
before the first, so texts of different salts (tenants, adapters, images) share nothing.

    salt <- [The, cat, sat, on] <- [a, mat, and, …]              blocks by group
                   5, None               2, 7                    5 and 2 of group 0; 7 of group 1
                                <- [the, roof, and, …]
                                         9, 4

A node is one piece of text for all cache groups; each group has its block, or none. There may be a snapshot of the
state after it (karat.kv.states). Bookkeeping only.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Salt = str | None


@dataclass(slots=True, eq=False)
class PrefixNode:
    """The tokens of one block after all tokens before them. `blocks` are those with their K and V, by group.

    It is findable while it has a block, a snapshot, a node after it, or a sequence whose last full block it is
    (`num_ends`). Otherwise it leaves the index and never comes back: the same text gets a new node.
    """

    parent: "PrefixNode | None"  # None: the text begins here
    salt: Salt
    token_ids: tuple[int, ...]
    blocks: list[int | None]
    num_children: int = 0
    num_ends: int = 0
    has_snapshot: bool = False
    is_findable: bool = True

    @property
    def key(self) -> "tuple[PrefixNode | Salt, tuple[int, ...]]":
        return (self.salt if self.parent is None else self.parent), self.token_ids

    def path(self) -> "Iterator[PrefixNode]":
        """This node, the one before it, and so on to the beginning of the text."""
        node: PrefixNode | None = self
        while node is not None:
            yield node
            node = node.parent

    @property
    def is_needed(self) -> bool:
        is_used = self.num_children > 0 or self.num_ends > 0 or self.has_snapshot
        return is_used or any(block is not None for block in self.blocks)


class Chain:
    """What a text can begin with: `path` are the nodes of its first blocks, and it can begin with `num_found` of them.

    `BlockPool.follow` brings both up to date. `limit` is in tokens: no block beyond it is looked for.
    """

    def __init__(self, token_ids: Sequence[int], limit: int, salt: Salt = None) -> None:
        self.token_ids = token_ids
        self.limit = limit  # tokens
        self.salt = salt
        self.path: list[PrefixNode] = []
        self.num_found = 0
        self.num_stored = 0  # blocks that are there; of these, those that no snapshot follows do not help
        self.num_revived = 0  # of the index, at the last call of `follow`
        self.looked_at: tuple[int, ...] = ()  # where the last call of `follow` looked for a snapshot, and among which


class PrefixIndex:
    """Nodes by content. Each content occurs at most once; every node's parent is in the index."""

    def __init__(self, num_groups: int, block_size: int) -> None:
        self._num_groups = num_groups
        self._block_size = block_size
        self.num_revived = 0  # how often `after` gave a node to which a block can come back
        self._nodes: dict[
            tuple[PrefixNode | Salt, tuple[int, ...]], PrefixNode
        ] = {}  # a parent always comes before its children

    def __len__(self) -> int:
        return len(self._nodes)

    def nodes(self) -> Iterable[PrefixNode]:
        """All nodes, a node after the one before it in its text."""
        return self._nodes.values()

    def extend(self, path: list[PrefixNode], token_ids: Sequence[int], limit: int, salt: Salt) -> int:
        """Bring the nodes that a text begins with up to date: at most `limit` tokens. It costs the nodes that changed.

        Nodes before a findable one are findable: checking the last one suffices. Returns how many were there already.
        """
        while path and not path[-1].is_findable:
            path.pop()
        num_known = len(path)
        while (stop := (len(path) + 1) * self._block_size) <= limit:
            content = tuple(token_ids[stop - self._block_size : stop])
            node = self._nodes.get((path[-1] if path else salt, content))
            if node is None:
                break
            path.append(node)
        return num_known

    def after(self, parent: PrefixNode | None, token_ids: Sequence[int], salt: Salt) -> PrefixNode:
        """The node of these tokens after a findable `parent` (None: at the beginning); made if there is none."""
        content = tuple(token_ids)
        node = self._nodes.get((salt if parent is None else parent, content))
        if node is None:
            node = PrefixNode(parent, salt, content, [None] * self._num_groups)
            self._nodes[node.key] = node
            if parent is not None:
                parent.num_children += 1
        elif None in node.blocks:
            self.num_revived += 1
        return node

    def drop_unneeded(self, node: PrefixNode | None) -> None:
        """Remove a node that nothing needs any more, and those before it that it alone needed."""
        while node is not None and node.is_findable and not node.is_needed:
            self._remove(node)
            node = node.parent

    def remove_with_descendants(self, first: PrefixNode) -> list[PrefixNode]:
        """Remove a findable node and all its continuations. Returns them."""
        lost = {first: None}  # in order: a parent before its children
        for node in self._nodes.values():
            if node.parent in lost:
                lost[node] = None
        for node in reversed(lost):
            self._remove(node)
        return list(lost)

    def check(self, ends: Counter[PrefixNode]) -> None:
        """Raise AssertionError unless contents and nodes are one to one and every node is needed.

        `ends` counts the sequences whose last full block a findable node is.
        """
        children = Counter(node.parent for node in self._nodes.values())
        known = set[PrefixNode]()
        for key, node in self._nodes.items():
            assert key == node.key, "contents and nodes are not one to one"
            assert node.is_findable and (node.parent is None or node.parent in known), "a node's parent is gone"
            assert node.parent is None or node.parent.salt == node.salt, "a node has another salt than its parent"
            assert (node.num_children, node.num_ends) == (children[node], ends[node]), "a node is miscounted"
            assert node.is_needed, "a node that nothing needs"
            known.add(node)

    def _remove(self, node: PrefixNode) -> None:
        del self._nodes[node.key]
        node.is_findable = False
        if node.parent is not None:
            node.parent.num_children -= 1
