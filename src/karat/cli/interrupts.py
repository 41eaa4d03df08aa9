"""Ctrl-C stops an answer and not the program."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed since the answer began."""

    def __init__(self) -> None:
        self.requested = False


@contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Inside, the first Ctrl-C is only noted. The caller acts on it between two tokens, when the engine's state is
    whole.

    A second one raises KeyboardInterrupt, in case there is no such moment.
    """
    interrupt = Interrupt()

    def note_it(signum: int, frame: FrameType | None) -> None:
        if interrupt.requested:
            raise KeyboardInterrupt
        interrupt.requested = True

    previous = signal.signal(signal.SIGINT, note_it)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, previous)
