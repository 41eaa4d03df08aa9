"""State: the changing state of a server: whether it is ending, and the number of open requests."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class State:
    """The state of a server in one event loop."""

    def __init__(self) -> None:
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
