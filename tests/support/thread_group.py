"""A group whose ranks are threads of this process: a second transport, for executors that compute with NumPy."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from karat.ranks.group import Array, Share

Result = TypeVar("Result")


class ThreadGroup:
    """One rank's view; `everyone` holds the parts of all."""

    channel = None

    def __init__(self, rank: int, everyone: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(everyone)
        self._everyone, self._barrier = everyone, barrier

    def all_gather(self, part: Array) -> list[Array]:
        self._everyone[self.rank] = part
        self._barrier.wait()
        parts = list(self._everyone)
        self._barrier.wait()
        return parts

    def gather_columns(self, part: Array, share: Share) -> Array:
        whole = np.concatenate(self.all_gather(part), axis=1)
        assert whole.shape[1] == share.total
        return whole


def on_all_ranks(size: int, work: Callable[[ThreadGroup], Result]) -> list[Result]:
    """The result of `work` on each rank. Raises the first error that is not of a barrier."""
    everyone: list[Any] = [None] * size
    barrier = threading.Barrier(size, timeout=300)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadGroup(rank, everyone, barrier))
        except threading.BrokenBarrierError:
            pass
        except Exception as error:  # noqa: BLE001 - raised by who started the threads
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
