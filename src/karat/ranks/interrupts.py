"""InterruptsPutOff: delays Ctrl-C while a message is sent or received, as half a message breaks the connection."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class InterruptsPutOff:
    """`with InterruptsPutOff():` delays SIGINT to the end of the block, which should take microseconds.

    A second SIGINT takes effect at once, so that a hanging block can be left. Python runs signal handlers in the main
    thread only, so in other threads this does nothing.
    """

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._came = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if self._came:
                self._handler(signal.SIGINT, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._came and self._handler is not None:
            self._handler(number, frame)
        self._came = True
