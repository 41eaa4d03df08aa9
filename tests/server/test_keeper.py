"""An engine that is loaded while requests come, and one that cannot be.

The server's life with a real engine is in test_lifecycle.py.
"""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest
from starlette.requests import Request

from karat.errors import CheckpointError
from karat.server.errors import ApiError
from karat.server.keeper import Keeper
from karat.server.responses import GoneError
from tests.server.conftest import serving


class Engine:
    healthy, failure = True, None

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def request(*, leaves: bool = False) -> Request:
    async def receive() -> Any:
        if not leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http"}, receive)


def test_requests_wait_for_the_model() -> None:
    async def load() -> None:
        begun, engine = asyncio.Event(), Engine()

        async def opened() -> Any:
            await begun.wait()
            return engine

        keeper = Keeper(opened)
        keeping = asyncio.create_task(keeper.run(lambda llm: None))
        waiting = [asyncio.create_task(keeper.loaded(request())) for _ in range(3)]
        gone = asyncio.create_task(keeper.loaded(request(leaves=True)))
        with pytest.raises(GoneError):
            await gone
        assert not any(each.done() for each in waiting)
        with pytest.raises(ApiError, match="is being loaded"):
            keeper.llm  # noqa: B018
        begun.set()
        assert await asyncio.gather(*waiting) == [engine] * 3 and await keeper.loaded(request()) is engine
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping

    asyncio.run(load())


def test_they_wait_only_so_long_and_not_for_one_that_cannot_be_loaded() -> None:
    async def load() -> None:
        async def opened() -> Any:
            await asyncio.Event().wait()

        late = Keeper(opened, 0.01)
        with pytest.raises(ApiError, match="is being loaded; try again") as refused:
            await late.loaded(request())
        assert (refused.value.status, refused.value.code) == (503, "loading") and refused.value.retry_after_s

        async def broken() -> Any:
            raise CheckpointError("no weights")

        keeper = Keeper(broken)
        waiting = asyncio.create_task(keeper.loaded(request()))
        with pytest.raises(CheckpointError):
            await keeper.run(lambda llm: None)
        with pytest.raises(ApiError, match="the server ends"):
            await waiting

    asyncio.run(load())


def test_a_client_that_asks_health_first_loses_no_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serving("--port", str(port), wait=False) as server:
        server.port = port

        def is_up() -> bool:
            with suppress(OSError):
                return server.ask("/health").status == 200
            return False

        server.until(is_up)
        answer = server.chat(max_tokens=2)
        assert answer.status == 200 and server.ask("/v1/models").status == 200
