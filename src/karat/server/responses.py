"""Responses: JSON, or events as they come; reading a body; and noticing that a client has left."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from karat.errors import SlowReaderError
from karat.server.errors import ApiError, of_any
from karat.server.pipe import Pipe, encoded
from karat.server.settings import ServerLimits
from karat.server.sse import PING, error_event
from karat.server.unpacking import is_packed, unpacked

T = TypeVar("T")
SMALL_BYTES = 1 << 16  # of a body that is read at once: 2 ms
_FIRST_S = 1.0  # for an error to come before the headers say 200


class GoneError(Exception):
    """The client has closed the connection."""


class JsonBytes:
    """An answer of encoded JSON."""

    def __init__(self, content: bytes, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        self._content = content
        self._status = status
        self._headers = {"content-type": "application/json", "content-length": str(len(content)), **headers}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self._status, "headers": encoded(self._headers)})
        await send({"type": "http.response.body", "body": self._content})


class Events:
    """Server-sent events. `make` gets a function that writes a batch of them at once, and returns the last batch.

    It is cancelled when the client leaves. `ping` is sent after ping_s seconds without events. A client that takes
    nothing for write_s seconds is dropped. An error after the headers is the last event, as `error_event` writes it.
    """

    def __init__(
        self,
        make: Callable[[Callable[[bytes], None]], Coroutine[Any, Any, bytes]],
        headers: Mapping[str, str],
        *,
        ping_s: float,
        write_s: float,
        ping: bytes = PING,
        error_event: Callable[[ApiError], bytes] = error_event,
    ) -> None:
        self._make = make
        self._headers = {
            "content-type": "text/event-stream",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **headers,
        }
        self._ping_s, self._write_s = ping_s, write_s
        self._ping, self._error_event = ping, error_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pipe = Pipe(send, self._headers, self._write_s)
        making = asyncio.create_task(self._make(pipe.write))
        leaving = asyncio.create_task(_left(receive))
        try:
            await self._awake(pipe, making, leaving)
            with _gone_if_late():
                await pipe.end(self._last_of(making, has_begun=pipe.has_begun))
        finally:
            pipe.close()
            leaving.cancel()
            making.cancel()
            with suppress(BaseException):
                await making

    async def _awake(self, pipe: Pipe, making: "asyncio.Task[bytes]", leaving: "asyncio.Task[None]") -> None:
        """Write pings until all events were made. GoneError if the client leaves or takes nothing."""
        now = asyncio.get_running_loop().time
        awaited: set[asyncio.Future[Any]] = {making, leaving, pipe.broken}
        while not making.done():
            wait_s = max(0, pipe.last + self._quiet_s(pipe) - now())
            await asyncio.wait(awaited, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done() or pipe.broken.done():
                raise GoneError
            if not making.done() and now() >= pipe.last + self._quiet_s(pipe):  # it may have begun meanwhile
                with suppress(SlowReaderError):  # who does not read needs no ping
                    pipe.write(self._ping if pipe.has_begun else b"")

    def _quiet_s(self, pipe: Pipe) -> float:
        """How long there may be no events."""
        return self._ping_s if pipe.has_begun else min(_FIRST_S, self._ping_s)

    def _last_of(self, making: "asyncio.Task[bytes]", *, has_begun: bool) -> bytes:
        """The last batch. An error is raised while the headers are not sent yet."""
        try:
            return making.result()
        except Exception as error:
            if not has_begun:
                raise
            return self._error_event(of_any(error))


@contextmanager
def _gone_if_late() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise GoneError from None


async def until_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. If the client leaves first, `work` is cancelled and GoneError raised."""
    doing, leaving = asyncio.ensure_future(work), asyncio.create_task(_left(request.receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise GoneError
    finally:
        leaving.cancel()
        doing.cancel()
        with suppress(BaseException):
            await doing


async def read_with(request: Request, limits: ServerLimits, read: Callable[[bytes], T]) -> T:
    """What `read` makes of the body of a request. A large body is read in a thread: other requests go on meanwhile.

    ApiError 413 or 408 beyond the limits, which hold for the unpacked body too, and 415 for an unknown encoding.
    """
    encoding = ", ".join(request.headers.getlist("content-encoding"))
    packed, content = is_packed(encoding), await _content(request, limits)

    def plain() -> T:
        return read(unpacked(content, encoding, limits.body_bytes) if packed else content)

    if len(content) <= SMALL_BYTES and not packed:
        return plain()
    return await until_left(request, asyncio.to_thread(plain))


async def _content(request: Request, limits: ServerLimits) -> bytes:
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 18 or int(length) > limits.body_bytes:
        raise _too_large(limits)
    content = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise GoneError
                content += message.get("body", b"")
                if len(content) > limits.body_bytes:
                    raise _too_large(limits)
                if not message.get("more_body", False):
                    return bytes(content)
    except TimeoutError:
        message_text = f"the body did not come within {limits.body_s:g} s; send it faster"
        raise ApiError(408, message_text, code="timeout") from None


def _too_large(limits: ServerLimits) -> ApiError:
    text = f"the body is larger than {limits.body_bytes} bytes (--max-body-bytes); send less"
    return ApiError(413, text, code="body_too_large")


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
