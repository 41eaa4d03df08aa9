"""Beginnings: how many of a text's first blocks a new sequence can begin with. Bookkeeping only.

A text can begin with its first n blocks if every cache group has those of them that the next token sees: all of them,
and in a group with a window the last ones. Where layers keep a state, there must be a snapshot of the state after them
(karat.kv.states).
"""

from bisect import bisect_left
from collections.abc import Sequence

from karat.kv.group_blocks import GroupBlocks
from karat.kv.prefix import Chain, PrefixIndex, PrefixNode
from karat.kv.states import StateSlots


class Beginnings:
    """Looks into the groups of one BlockPool, its index and its states. It changes nothing but the chains."""

    def __init__(
        self, index: PrefixIndex, groups: Sequence[GroupBlocks], states: StateSlots | None, block_size: int
    ) -> None:
        self._index = index
        self._whole = [group for group in groups if group.size.window is None]
        self._windowed = [group for group in groups if group.size.window is not None]
        self._states = states
        self._block_size = block_size

    def follow(self, chain: Chain) -> int:
        """The number of blocks that the text can begin with now. It costs the blocks that changed, and a window."""
        index, path = self._index, chain.path
        num_known = index.extend(path, chain.token_ids, chain.limit, chain.salt)
        if index.num_revived != chain.num_revived:
            chain.num_stored, chain.num_revived = self._most_usable(path, len(path)), index.num_revived
        else:  # so many blocks more than before are usable only where the path has grown
            grown = self._most_usable(path, len(path), num_known)
            chain.num_stored = grown or self._most_usable(path, min(chain.num_stored, len(path)))
        chain.num_found = chain.num_stored if self._states is None else self._most_with_state(chain, self._states)
        return chain.num_found

    def _most_usable(self, path: Sequence[PrefixNode], most: int, least: int = 0) -> int:
        """The most nodes of a path that a text can begin with, of least + 1 … most; 0 if there are none.

        Every group must have those of the blocks that the next token sees.
        """
        num = most
        for group in self._whole:  # it has the block before each block that it has
            num = bisect_left(path, True, hi=num, key=lambda node: node.blocks[group.number] is None)
        whole_from = [num] * len(self._windowed)  # the group has the blocks from there on to `num`
        while num > least:
            for i, group in enumerate(self._windowed):
                first, place = group.first_seen(num * self._block_size), min(whole_from[i], num)
                while place > first and path[place - 1].blocks[group.number] is not None:
                    place -= 1
                whole_from[i] = place
                if place > first:
                    while place > least and path[place - 1].blocks[group.number] is None:
                        place -= 1
                    num = place
                    break
            else:
                return num
        return 0

    def _most_with_state(self, chain: Chain, states: StateSlots) -> int:
        """The most of the usable blocks of a chain after which there is a snapshot."""
        looked_at = (chain.num_stored, states.num_changes, self._index.num_revived)
        most = chain.num_found if looked_at == chain.looked_at else chain.num_stored
        chain.looked_at = looked_at
        for num in range(most, 0, -1):
            if chain.path[num - 1].has_snapshot and self._most_usable(chain.path, num, num - 1):
                return num
        return 0
