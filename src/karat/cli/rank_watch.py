"""Notices the death of a tensor-parallel rank between requests, while the user thinks about the next message."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from karat.engine.llm import LLM

_LOOK_S = 0.5


@contextmanager
def ranks_watched(llm: "LLM") -> Iterator[None]:
    """Inside, the death of a rank soon raises RankError, also during a wait for input. For the main thread only.

    It works by a timer, whose signal interrupts the main thread; SIGCHLD may go to any thread.
    """
    llm.check_ranks()
    if llm.tensor_parallel_size == 1:
        yield
        return
    inside = True

    def look(signum: int, frame: FrameType | None) -> None:
        if inside:
            llm.check_ranks()
            signal.setitimer(signal.ITIMER_REAL, _LOOK_S)

    signal.signal(signal.SIGALRM, look)  # the handler stays, because a last signal may be on its way at the end
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S)
    try:
        yield
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
