"""An HTTP client for many streams at once that takes little of the processor.

The time of an event is that of the read that brought it: it is taken before anything is parsed, so the client's own
work on other streams adds nothing to it but the wait for the loop. Parsing is httptools' (C). Connections are used
again, as clients of a service do; a connection that the server closed meanwhile is replaced without a word.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import httptools

from karat.errors import UsageError

OnData = Callable[[bytes, float], None]  # may raise FailedError
MAX_BODY = 1 << 20  # bytes kept of an answer that is no stream, unless the client says otherwise


class FailedError(Exception):
    """A request without a whole answer; the message is its kind, a few words that are the same for the same cause."""


@dataclass(slots=True)
class HttpResponse:
    """The end of an answer. `body` is empty for a stream of events, whose data went to `on_data`.

    `headers` have small letters; of several with one name the last counts.
    """

    status: int
    body: bytes
    ended: float  # perf_counter
    headers: Mapping[str, str]


class Client:
    """Requests to one server. `url` may have a path, which comes before that of each request.

    An answer of more than `max_body` bytes that is no stream is cut there.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 600,
        max_body: int = MAX_BODY,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError(f"{url!r} is no server's URL; expected one such as http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        try:
            port = parts.port
        except ValueError:
            raise UsageError(f"{url!r}: the port is not a number below 65536") from None
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._head = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._netloc = parts.netloc.rpartition("@")[2]
        self._timeout_s = timeout_s
        self._max_body = max_body
        self._idle: list[_Connection] = []

    async def post(self, path: str, body: bytes, on_data: OnData) -> HttpResponse:
        """Send `body` (JSON). The data of each event of a stream go to `on_data`, with the time of their arrival.

        Raises FailedError.
        """
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return await self._send("POST", path, head, body, on_data)

    async def get(self, path: str) -> HttpResponse:
        """Raises FailedError."""
        return await self._send("GET", path, "", b"", lambda data, when: None)

    async def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _send(self, method: str, path: str, head: str, body: bytes, on_data: OnData) -> HttpResponse:
        lines = f"{method} {self._path}{path} HTTP/1.1\r\nHost: {self._netloc}\r\n{self._head}{head}\r\n"
        message = lines.encode() + body
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    connection = self._used_again()
                    is_new = connection is None
                    if connection is None:
                        connection = await self._connect()
                    try:
                        response = await connection.exchange(message, on_data)
                    except _StaleError as stale:
                        connection.close()
                        if is_new:
                            raise FailedError("the connection was closed before the answer") from stale
                        continue
                    except BaseException:
                        connection.close()
                        raise
                    if connection.can_go_on:
                        self._idle.append(connection)
                    else:
                        connection.close()
                    return response
        except TimeoutError:
            raise FailedError(f"no whole answer within {self._timeout_s:g} s") from None

    def _used_again(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                partial(_Connection, self._max_body), self._host, self._port, ssl=self._tls
            )
        except ConnectionRefusedError as fault:
            raise FailedError("the connection was refused") from fault
        except OSError as fault:
            raise FailedError(f"no connection: {fault.strerror or fault}") from fault
        return connection


class _StaleError(Exception):
    """The server closed the connection before the first byte of an answer."""


class _Connection(asyncio.Protocol):
    """One connection, one request at a time; httptools calls the methods `on_…`."""

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self.is_open = True
        self.can_go_on = False
        self._transport: Any = None
        self._future: asyncio.Future[HttpResponse] | None = None
        self._now = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    async def exchange(self, message: bytes, on_data: OnData) -> HttpResponse:
        """The answer to a whole message. Raises _StaleError and FailedError."""
        self._future = asyncio.get_running_loop().create_future()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._on_data = on_data
        self._has_begun = self._is_stream = False
        self._rest, self._body = b"", bytearray()
        self._headers: dict[str, str] = {}
        self._transport.write(message)
        try:
            return await self._future
        finally:
            self._future = None

    def close(self) -> None:
        self.is_open = False
        with suppress(RuntimeError):  # the loop may be closed already
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._now = perf_counter()
        if self._future is None:
            self.close()  # nothing was asked
            return
        self._has_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:  # from on_data
            fault = error.__context__
            self._fail(fault if isinstance(fault, Exception) else error)
        except httptools.HttpParserError:
            self._fail(FailedError("the answer is not HTTP"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._future is None:
            return
        self._now = perf_counter()
        if not self._has_begun:
            self._fail(_StaleError())
            return
        self._fail(FailedError("the connection was closed in the middle of the answer"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        if name.lower() == b"content-type":
            self._is_stream = value.lower().startswith(b"text/event-stream")

    def on_body(self, body: bytes) -> None:
        if not self._is_stream:
            self._body += body[: self._max_body - len(self._body)]
            return
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._on_data(line[5:].strip(), self._now)

    def on_message_complete(self) -> None:
        self.can_go_on = self._parser.should_keep_alive()
        if self._future is not None and not self._future.done():
            self._future.set_result(
                HttpResponse(self._parser.get_status_code(), bytes(self._body), self._now, self._headers)
            )

    def _fail(self, fault: Exception) -> None:
        self.can_go_on = False
        if self._future is not None and not self._future.done():
            self._future.set_exception(fault)
