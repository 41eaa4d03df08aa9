"""A group of tensor-parallel ranks, as layers and executors see it.

A transport (shared memory; later gloo, NCCL) has to do one thing: show every rank's part of a result to all ranks. What
is then made of the parts – sums along the fixed tree, rows, columns – is Karat's own arithmetic, so that no transport
and no degree changes a bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


class Group(Protocol):
    """What a rank knows of the ranks it works with. Every rank calls the same collectives in the same order.

    `channel` is what a plan in C++ takes (`karat._native.SharedMemory`), None where a transport needs the host.
    Collectives raise StepAbandonedError where the step was given up because another rank failed.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def channel(self) -> Any | None: ...

    def all_gather(self, part: Array) -> list[Array]:
        """The parts of all ranks in their order, of one shape and dtype; good until the next but one collective."""

    def gather_columns(self, part: Array, share: "Share") -> Array:
        """All ranks' columns [rows, columns] side by side: [rows, share.total]; good until the next such call."""


class SingleGroup:
    """One rank: nothing is exchanged."""

    rank, size, channel = 0, 1, None

    def all_gather(self, part: Array) -> list[Array]:
        return [part]

    def gather_columns(self, part: Array, share: "Share") -> Array:
        return part


SINGLE: Group = SingleGroup()


@dataclass(frozen=True, slots=True)
class Seat:
    """A place in a group that is only planned: it says what a rank would hold, and nothing can be exchanged."""

    rank: int
    size: int
    channel: None = None

    def all_gather(self, part: Array) -> NoReturn:
        raise AssertionError("a planned rank has nobody to exchange results with")

    def gather_columns(self, part: Array, share: "Share") -> NoReturn:
        raise AssertionError("a planned rank has nobody to exchange results with")


@dataclass(frozen=True, slots=True)
class Share:
    """An axis that is shared out: rank r has what lies between ends[r - 1] (0 for the first) and ends[r]."""

    group: Group
    ends: tuple[int, ...]

    @property
    def first(self) -> int:
        """Where this rank's part begins."""
        return self.ends[self.group.rank - 1] if self.group.rank else 0

    @property
    def total(self) -> int:
        return self.ends[-1]

    def owners(self, indices: NDArray[np.integer]) -> NDArray[np.intp]:
        """The rank that has each of these places of the axis."""
        return np.searchsorted(self.ends, indices, side="right")

    def rows_of_owners(self, indices: NDArray[np.integer], rows: Array) -> Array:
        """Row i from the rank that has place indices[i]; `rows` are this rank's, where others' places mean nothing."""
        parts = self.group.all_gather(rows)
        whole: Array = np.stack(parts)[self.owners(indices), np.arange(len(indices))]
        return whole


def tree_sum(parts: Sequence[Array]) -> Array:
    """The sum along the binary tree over all parts (a power of two of them), ((0 + 1) + (2 + 3)): a new array."""
    assert parts and len(parts) & (len(parts) - 1) == 0, f"a tree over {len(parts)} parts"
    if len(parts) == 1:
        return parts[0].copy()
    half = len(parts) // 2
    total: Array = tree_sum(parts[:half]) + tree_sum(parts[half:])
    return total
