"""State: the changing state of a server: whether it is ending, and the number of open requests."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ServerState:
    """The state of a server in one event loop. num_lost_lines: of its log, so far."""

    def __init__(self, num_lost_lines: Callable[[], int] = int) -> None:
        self.num_lost_lines = num_lost_lines
        self.draining = False
        self.num_busy = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A context for a request that the end of the server waits for."""
        self.num_busy += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_busy -= 1
            if self.num_busy == 0:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is open."""
        await self._idle.wait()
