"""Collectives between ranks that are threads of one process."""

import threading

import numpy as np


class Group:
    """All ranks' mailbox. Every rank calls the same collectives in the same order."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.mail: list[np.ndarray] = [np.empty(0)] * ranks
        self.barrier = threading.Barrier(ranks)

    def exchange(self, rank: int, x: np.ndarray) -> list[np.ndarray]:
        """What every rank has brought, in the order of ranks."""
        self.mail[rank] = x
        self.barrier.wait()
        all_of_them = list(self.mail)
        self.barrier.wait()
        return all_of_them


class Comm:
    """One rank's end of the group."""

    def __init__(self, group: Group, rank: int) -> None:
        self.group, self.rank = group, rank

    def all_reduce(self, x: np.ndarray) -> np.ndarray:
        total = np.zeros_like(x)
        for part in self.group.exchange(self.rank, x):
            total = total + part
        return total

    def all_gather(self, x: np.ndarray) -> np.ndarray:
        """Parts side by side along the last axis."""
        return np.concatenate(self.group.exchange(self.rank, x), axis=-1)
