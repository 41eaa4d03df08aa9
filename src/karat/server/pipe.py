"""Pipe: the body of an answer, written as it is made, from where it is made."""

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Mapping
from typing import Any

from starlette.types import Send

from karat.errors import SlowReaderError

MAX_KEPT = 4 << 20  # bytes that wait for a client which reads too slowly


class Pipe:
    """Sends batches of bytes by `send` of ASGI, in order. It must be made in the event loop that it is used in.

    `write` sends at once, without a task, while the connection takes bytes. Beyond that a task sends the rest. `broken`
    is done when the client has taken nothing for write_s seconds.
    """

    def __init__(self, send: Send, headers: Mapping[str, str], write_s: float) -> None:
        self._send = send
        self._headers = headers
        self._write_s = write_s
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None
        self._kept: list[bytes] = []
        self._num_kept = 0
        self.broken: asyncio.Future[None] = self._loop.create_future()
        self.has_begun = False
        self.last = self._loop.time()  # when something was written

    def write(self, batch: bytes) -> None:
        """Send a batch; the first comes after the headers. SlowReaderError if too many bytes wait already."""
        self.last = self._loop.time()
        if self._draining is not None:
            self._keep(batch)
            return
        rest = begun(self._put(batch))
        if rest is not None:
            self._draining = self._loop.create_task(self._drain(rest))

    async def end(self, batch: bytes) -> None:
        """Send the last batch after everything else. TimeoutError if the client takes nothing for write_s seconds."""
        if self._draining is not None:
            await asyncio.wait({self._draining, self.broken}, return_when=asyncio.FIRST_COMPLETED)
        if self.broken.done():
            raise TimeoutError
        async with asyncio.timeout(self._write_s):
            await self._put(batch, is_last=True)

    def close(self) -> None:
        """Send nothing more."""
        if self._draining is not None:
            self._draining.cancel()

    def _keep(self, batch: bytes) -> None:
        self._kept.append(batch)
        self._num_kept += len(batch)
        if self._num_kept > MAX_KEPT:
            raise SlowReaderError(
                f"{self._num_kept} bytes of the answer wait to be read, of at most {MAX_KEPT}; it was ended; read the "
                "answer as it comes, or ask for fewer tokens"
            )

    async def _drain(self, rest: Awaitable[None]) -> None:
        """Send the rest of a batch, and what was kept meanwhile."""
        try:
            async with asyncio.timeout(self._write_s):
                await rest
            while self._kept:
                batch = b"".join(self._kept)
                self._kept, self._num_kept = [], 0
                async with asyncio.timeout(self._write_s):
                    await self._put(batch)
        except TimeoutError:
            if not self.broken.done():
                self.broken.set_result(None)
            return
        self._draining = None

    async def _put(self, batch: bytes, *, is_last: bool = False) -> None:
        if not self.has_begun:
            self.has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": encoded(self._headers)})
        await self._send({"type": "http.response.body", "body": batch, "more_body": not is_last})


def begun(coroutine: Coroutine[Any, Any, None]) -> Awaitable[None] | None:
    """Run a coroutine as far as it goes without waiting. None if to its end, else the rest, which a task can await."""
    try:
        waits_for = coroutine.send(None)
    except StopIteration:
        return None
    return _Rest(coroutine, waits_for)


class _Rest:
    """A coroutine that waits for a future."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            yield self._waits_for
        except BaseException:
            self._coroutine.close()
            raise
        return (yield from self._coroutine.__await__())


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers in ASGI's form, with nosniff: no browser guesses the type of an answer."""
    safe = {"x-content-type-options": "nosniff", **headers}
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in safe.items()]
