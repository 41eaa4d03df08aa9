"""Time as this machine lets it pass: seconds in which a process of ours got no core do not count."""

import threading
import time
from types import TracebackType

_TICK_S = 0.01


class FairClock:
    """While it is open, `seconds` grows by what passes, but by two ticks at most for each tick that a thread waited.

    On an idle machine that is the time; where a thread that wants to wake every 10 ms wakes late, less.
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
