"""Ingress: Serve's deployment that speaks HTTP: the app of `karat serve`, whose engine is a fleet of replicas."""

import asyncio
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from karat.engine.async_llm import AsyncLLM
from karat.ray.arguments import read_arguments
from karat.ray.calls import Calls
from karat.ray.fleet import Replicas
from karat.server.app import make_app
from karat.server.keeper import Keeper
from karat.server.state import ServerState


class Ingress:
    """`arguments` is an encoded Arguments, `replicas` Serve's handle of them."""

    async def __init__(self, arguments: bytes, replicas: Any) -> None:  # type: ignore[misc]  # Serve awaits it
        given = read_arguments(arguments)
        source = Replicas(Calls(replicas, msgspec.msgpack.encode(given.of_replica())))

        async def open_llm() -> AsyncLLM:
            options = given.engine_options()
            return await AsyncLLM.open(given.model, max_queue=given.max_queue, source=source, **options)

        keeper, loaded = Keeper(open_llm), asyncio.Event()
        self._app = _with_one_id(make_app(keeper, given.settings(), ServerState()))
        self._keeping = asyncio.create_task(keeper.run(lambda _: loaded.set()))
        waiting = asyncio.create_task(loaded.wait())
        await asyncio.wait({self._keeping, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self._raise_failure()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._app

    async def check_health(self) -> None:
        """Raises where this has ended for good."""
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._keeping.done():
            self._keeping.result()


def _with_one_id(inner: ASGIApp) -> ASGIApp:
    """The app without its header x-request-id: Serve's proxy names the request, and says so itself."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [each for each in message["headers"] if each[0] != b"x-request-id"]
            await send(message)

        await inner(scope, receive, telling)

    return app
