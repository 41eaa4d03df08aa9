"""A small HTTP server that answers each path by a function: what a bad or a steady server of OpenAI's protocol does."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Answer = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(words: str) -> bytes:
    return event(choices=[{"text": words}])


DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def stream(*parts: bytes, ends: bool = True) -> Answer:
    """The parts as a stream; without `ends` the connection is closed in the middle."""

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for part in parts:
            writer.write(chunk(part))
            await writer.drain()
        writer.write(b"0\r\n\r\n" if ends else b"")
        if not ends:
            writer.close()

    return answer


def plain(status: int, body: Any, content_type: str = "application/json") -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def answer(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} So\r\ncontent-type: {content_type}\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)

    return answer


async def serve(paths: Mapping[str, Answer]) -> asyncio.Server:
    """A server on a port of loopback, in this event loop."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                path, length = line.split()[1].decode(), 0
                while (header := await reader.readline()).strip():
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                body = json.loads(await reader.readexactly(length)) if length else {}
                await paths[path](body, writer)
                if writer.is_closing():
                    break
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client or the test has ended
        finally:
            writer.close()

    return await asyncio.start_server(talk, "127.0.0.1", 0)


def url_of(server: asyncio.Server) -> str:
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@contextmanager
def beside(paths: Mapping[str, Answer]) -> Iterator[str]:
    """The URL of such a server in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(serve(paths), loop).result(30)
        yield url_of(server)
        loop.call_soon_threadsafe(server.close)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
