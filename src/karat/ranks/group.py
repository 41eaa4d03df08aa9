"""Group: tensor-parallel ranks, as layers and executors see them.

A transport (shared memory; later gloo, NCCL) does one thing: it shows every rank's part of a result to all ranks. Karat
itself computes with the parts (sums along the fixed tree, rows, columns), so no transport and no degree changes a bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


class Group(Protocol):
    """A rank's view of its group. Every rank calls the same collectives in the same order.

    `channel` is the shared memory that a plan in C++ uses (`karat._native.SharedMemory`), or None for a transport that
    needs the host. Collectives raise StepAbandonedError if the step is given up because another rank failed.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def channel(self) -> Any | None: ...

    def all_gather(self, part: Array) -> list[Array]:
        """The parts of all ranks in order, all of one shape and dtype. Valid until the next but one collective."""

    def gather_columns(self, part: Array, share: "Share") -> Array:
        """All ranks' columns [rows, columns] side by side: [rows, share.total]. Valid until the next such call."""


class SingleGroup:
    """A group of one rank. It exchanges nothing."""

    rank, size, channel = 0, 1, None

    def all_gather(self, part: Array) -> list[Array]:
        return [part]

    def gather_columns(self, part: Array, share: "Share") -> Array:
        return part


SINGLE: Group = SingleGroup()


@dataclass(frozen=True, slots=True)
class PlannedRank:
    """A rank of a planned group, to compute what the rank would hold. It cannot exchange results."""

    rank: int
    size: int
    channel: None = None

    def all_gather(self, part: Array) -> NoReturn:
        raise AssertionError("a planned rank cannot exchange results")

    def gather_columns(self, part: Array, share: "Share") -> NoReturn:
        raise AssertionError("a planned rank cannot exchange results")


@dataclass(frozen=True, slots=True)
class Share:
    """An axis that is cut for ranks: rank r holds [ends[r - 1], ends[r]), the first rank from 0 on."""

    group: Group
    ends: tuple[int, ...]

    @property
    def first(self) -> int:
        """The first index of this rank's part."""
        return self.ends[self.group.rank - 1] if self.group.rank else 0

    @property
    def total(self) -> int:
        """The length of the whole axis."""
        return self.ends[-1]

    def owners(self, indices: NDArray[np.integer]) -> NDArray[np.intp]:
        """The rank that holds each of these indices of the axis."""
        return np.searchsorted(self.ends, indices, side="right")

    def rows_of_owners(self, indices: NDArray[np.integer], rows: Array) -> Array:
        """Row i from the rank that holds indices[i]. `rows` are this rank's; rows of indices it lacks are ignored."""
        parts = self.group.all_gather(rows)
        whole: Array = np.stack(parts)[self.owners(indices), np.arange(len(indices))]
        return whole


def tree_sum(parts: Sequence[Array]) -> Array:
    """The sum of the parts along a binary tree, ((0 + 1) + (2 + 3)), as a new array. Their number is a power of two."""
    assert parts and len(parts) & (len(parts) - 1) == 0, f"a tree over {len(parts)} parts"
    if len(parts) == 1:
        return parts[0].copy()
    half = len(parts) // 2
    total: Array = tree_sum(parts[:half]) + tree_sum(parts[half:])
    return total
