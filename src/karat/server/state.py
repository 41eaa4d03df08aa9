"""What of the server changes while it runs: whether it is ending, and which requests are under way."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class State:
    """For one event loop."""

    def __init__(self) -> None:
        self.draining = False
        self.num_busy = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Around a request that the end of the server waits for."""
        self.num_busy += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_busy -= 1
            if self.num_busy == 0:
                self._idle.set()

    async def idle(self) -> None:
        """Until no request is under way."""
        await self._idle.wait()
