"""Responses: JSON, or events as they come; reading a body; and noticing that a client has left."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from karat.errors import KaratError
from karat.server.errors import ApiError, of_karat
from karat.server.settings import Limits
from karat.server.sse import PING, error_event

T = TypeVar("T")
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
    """Server-sent events. Each of `batches` is written at once; the iterator is closed when the client leaves.

    `ping` is sent after ping_s seconds without events. A client that reads nothing for write_s seconds is dropped.
    An error after the headers is the last event, as `error_event` writes it.
    """

    def __init__(
        self,
        batches: AsyncGenerator[bytes],
        headers: Mapping[str, str],
        *,
        ping_s: float,
        write_s: float,
        ping: bytes = PING,
        error_event: Callable[[ApiError], bytes] = error_event,
    ) -> None:
        self._batches = batches
        self._headers = {
            "content-type": "text/event-stream",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **headers,
        }
        self._ping_s, self._write_s = ping_s, write_s
        self._ping, self._error_event = ping, error_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_left(receive))
        coming: asyncio.Task[bytes] | None = None
        started = False
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(self._batches))
                wait_s = self._ping_s if started else min(_FIRST_S, self._ping_s)
                await asyncio.wait({coming, leaving}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    raise GoneError
                batch, is_last = self._ping if started else b"", False
                if coming.done():
                    batch, is_last = self._batch_of(coming, started=started)
                    coming = None
                if not started:
                    started = True
                    await send({"type": "http.response.start", "status": 200, "headers": encoded(self._headers)})
                await self._write(send, batch, is_last=is_last)
                if is_last:
                    return
        finally:
            leaving.cancel()
            if coming is not None:
                coming.cancel()
                with suppress(BaseException):
                    await coming
            await self._batches.aclose()

    async def _write(self, send: Send, batch: bytes, *, is_last: bool) -> None:
        try:
            async with asyncio.timeout(self._write_s):
                await send({"type": "http.response.body", "body": batch, "more_body": not is_last})
        except TimeoutError:
            raise GoneError from None

    def _batch_of(self, coming: "asyncio.Task[bytes]", *, started: bool) -> tuple[bytes, bool]:
        """The next batch, and whether it is the last. An error is raised while the headers are not sent yet."""
        try:
            return coming.result(), False
        except StopAsyncIteration:
            return b"", True
        except (ApiError, KaratError) as error:
            if not started:
                raise
            return self._error_event(error if isinstance(error, ApiError) else of_karat(error)), True


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


async def read_content(request: Request, limits: Limits) -> bytes:
    """The body of a request. 413 or 408 beyond the limits, 415 for a compressed body."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise ApiError(415, "the body is compressed; send it as it is", code="unsupported_encoding")
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


def _too_large(limits: Limits) -> ApiError:
    text = f"the body is larger than {limits.body_bytes} bytes (--max-body-bytes); send less"
    return ApiError(413, text, code="body_too_large")


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers in ASGI's form, with nosniff: no browser guesses the type of an answer."""
    safe = {"x-content-type-options": "nosniff", **headers}
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in safe.items()]
