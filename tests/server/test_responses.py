"""Bodies: a large one is read beside the event loop, which serves others meanwhile."""

import asyncio
import threading
from typing import Any

from starlette.requests import Request

from karat.server.responses import SMALL_BYTES, read_with
from karat.server.settings import ServerLimits


def test_large_bodies_are_read_in_a_thread() -> None:
    def read(content: bytes) -> tuple[int, bool]:
        return len(content), threading.current_thread() is threading.main_thread()

    async def reading(num_bytes: int) -> tuple[int, bool]:
        async def receive() -> Any:
            return messages.pop() if messages else await asyncio.Event().wait()

        messages = [{"type": "http.request", "body": b"a" * num_bytes}]
        return await read_with(Request({"type": "http", "headers": []}, receive), ServerLimits(), read)

    for num_bytes in (0, 10, SMALL_BYTES, SMALL_BYTES + 1, 3 * SMALL_BYTES):
        assert asyncio.run(reading(num_bytes)) == (num_bytes, num_bytes <= SMALL_BYTES)
