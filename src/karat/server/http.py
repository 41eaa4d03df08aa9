"""uvicorn with further limits: the bytes and time of a request's head, and the number of connections."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from karat.server.errors import RETRY_AFTER_S, ApiError
from karat.server.request_log import new_id, serving
from karat.server.settings import Limits, Settings

_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


LINGER_S = 2.0
_log = logging.getLogger("karat.server")


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the caller handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: Any, settings: Settings) -> Server:
    """A server for sockets that the caller has bound."""
    config = uvicorn.Config(
        app,
        http=_limited(settings.limits),
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_keep_alive=int(settings.limits.idle_s),
        timeout_graceful_shutdown=1,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    return Server(config)


def _limited(limits: Limits) -> type[asyncio.Protocol]:
    class LimitedProtocol(HttpToolsProtocol):
        """A connection. `limits` bound the bytes of a head (request line and headers) and its seconds from the first
        byte.
        """

        _in_head = True
        _head_bytes = 0
        _timer: asyncio.TimerHandle | None = None
        _linger: asyncio.TimerHandle | None = None
        _has_ended = False
        _has_message = False  # whether the end of one was in the data that came last

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                text = f"{limits.connections} connections are open already (--max-connections); try again later"
                self._end(ApiError(503, text, code="connections", retry_after_s=RETRY_AFTER_S), linger_s=0)
            else:
                self._watch_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch_head()
            self._stop_lingering()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._has_ended or self.transport.is_closing():
                return
            if self._in_head:
                self._watch_head()
            self._has_message = False
            super().data_received(data)
            if self._has_message or self._has_ended or self.transport.is_closing():
                return
            if self._in_head:  # all of the data was of a head that has not come to its end
                self._head_bytes += len(data)
                self._check_head()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head, self._head_bytes = True, 0

        def on_url(self, url: bytes) -> None:
            super().on_url(url)
            self._head_bytes += len(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            super().on_header(name, value)
            self._head_bytes += len(name) + len(value)

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._unwatch_head()
            if self._head_bytes > limits.head_bytes:
                raise ValueError("the head is too large")  # the parser ends, and `send_400_response` says why
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._stop_lingering()
            self._in_head, self._head_bytes, self._has_message = True, 0, True

        def on_response_complete(self) -> None:
            """Let a client send the rest of its body for a moment, unread: it reads no answer before that."""
            super().on_response_complete()
            if not self._in_head and not self.transport.is_closing():
                self._linger = self.loop.call_later(LINGER_S, self.transport.close)

        def _stop_lingering(self) -> None:
            if self._linger is not None:
                self._linger.cancel()
                self._linger = None

        def send_400_response(self, msg: str) -> None:
            if not self._check_head():
                self._end(ApiError(400, "this is no HTTP request; send HTTP/1.1", code="invalid_http"))

        def _check_head(self) -> bool:
            if self._head_bytes <= limits.head_bytes:
                return False
            text = f"request line and headers are larger than {limits.head_bytes} bytes; send less"
            self._end(ApiError(431, text, code="head_too_large"))
            return True

        def _watch_head(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(limits.head_s, self._too_slow)

        def _unwatch_head(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _too_slow(self) -> None:
            self._timer = None
            text = f"the request's head did not come within {limits.head_s:g} s; send it faster"
            self._end(ApiError(408, text, code="timeout"))

        def _end(self, error: ApiError, linger_s: float = LINGER_S) -> None:
            """Send an error, unless another answer is being written. Close after `linger_s`, so that it can be read."""
            if self._has_ended or self.transport.is_closing():
                return
            self._has_ended = True
            self._unwatch_head()
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_raw(error))
            if linger_s and self.transport.can_write_eof():
                self.transport.write_eof()
                self._linger = self.loop.call_later(linger_s, self.transport.close)
            else:
                self.transport.close()

    return LimitedProtocol


def _raw(error: ApiError) -> bytes:
    """The answer to what never became a request: it has an id too, and a line of the log."""
    with serving(new_id()) as facts:
        named = str(facts["request_id"])
        _log.info("no request: %d", error.status, extra={"facts": {"status": error.status}})
    body = error.body_for(named)
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = [f"HTTP/1.1 {error.status} {_REASONS[error.status]}"]
    lines += [f"{name}: {value}" for name, value in (headers | error.headers | {"x-request-id": named}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
