"""Time without the seconds in which a process of ours got no core."""

import threading
import time
from types import TracebackType

_TICK_S = 0.01


class FairClock:
    """While it is open, `seconds` grows with time, but by at most two ticks for each tick that a thread waited.

    On an idle machine it is the time. It is less if a thread that sleeps for 10 ms at a time wakes late.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> "FairClock":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()

    def _tick(self) -> None:
        before = time.monotonic()
        while not self._closing.wait(_TICK_S):
            now = time.monotonic()
            self.seconds += min(now - before, 2 * _TICK_S)
            before = now
