"""uvicorn with further limits: the bytes and time of a request's head, and the number of connections."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from karat.server.errors import RETRY_AFTER_S, ApiError
from karat.server.request_log import new_id, serving
from karat.server.settings import ServerLimits, ServerSettings

_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


LINGER_S = 2.0
_PROBE_S = 0.1  # between looks at whether a client that sends no more is still there
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NO_EVENT = b"3\r\n:\n\n\r\n"  # a chunk: a comment of server-sent events, which all chunked answers are
_log = logging.getLogger("karat.server")


class HttpServer(uvicorn.Server):
    """uvicorn's server without its signal handlers: the caller handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: Any, settings: ServerSettings) -> HttpServer:
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
    return HttpServer(config)


def _limited(limits: ServerLimits) -> type[asyncio.Protocol]:
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
        _probe: asyncio.TimerHandle | None = None  # of a client that sends no more

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
            if self._probe is not None:
                self._probe.cancel()
            super().connection_lost(exc)

        def eof_received(self) -> bool:  # type: ignore[override]
            """The client sends no more: it has left, or waits for the answers to what it has sent.

            What is written to one who has left comes back as a fault of the connection, so something is written that
            changes no answer. HTTP/1.0 has nothing of the kind, and TLS no half of a connection: there it has left.
            """
            cycle = self.cycle
            if cycle is None or cycle.response_complete or self.transport.is_closing() or self._has_ended:
                return False
            if not self.transport.can_write_eof():
                return False
            if cycle.more_body:
                self._end(ApiError(400, "the connection ends before the body does; send all of it", code="cut_body"))
                return True
            if cycle.scope["http_version"] != "1.1":
                return False
            if self._probe is None:
                if not cycle.response_started:
                    self.transport.write(_CONTINUE)
                elif cycle.chunked_encoding:
                    self.transport.write(_NO_EVENT)
                self._look()
            return True

        def _look(self) -> None:
            connection: socket.socket = self.transport.get_extra_info("socket")
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.transport.abort()
            else:
                self._probe = self.loop.call_later(_PROBE_S, self._look)

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
            is_last = not self.pipeline
            super().on_response_complete()
            if self._probe is not None and is_last:
                self.transport.close()
            if not self._in_head and not self.transport.is_closing():
                self._linger = self.loop.call_later(LINGER_S, self.transport.close)

        def _stop_lingering(self) -> None:
            if self._linger is not None:
                self._linger.cancel()
                self._linger = None

        def send_400_response(self, msg: str) -> None:
            if self._check_head():
                return
            what = "this is no HTTP request; send HTTP/1.1"
            if not self._in_head:
                what = "the body's chunks are wrong; send the size of each in hexadecimal, its bytes and a line break"
            self._end(ApiError(400, what, code="invalid_http"))

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
            cycle = self.cycle
            if cycle is not None and not self._in_head and not self.pipeline and not cycle.response_started:
                cycle.disconnected = True  # its body never comes to its end
                cycle.message_event.set()
                self.transport.write(_raw(error))
            elif cycle is None or cycle.response_complete:
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
