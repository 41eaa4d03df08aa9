"""Keeper: opens an engine, notices its death, restarts it, and gives up at the second death within a minute."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.requests import Request

from karat.engine.async_llm import AsyncLLM
from karat.server.errors import RETRY_AFTER_S, ApiError
from karat.server.responses import until_left

_LOOK_S = 0.1
_log = logging.getLogger("karat.server")


class Keeper:
    """`open_llm` opens an engine. `run` keeps it running until it is cancelled.

    Who comes before it is there waits at most wait_s seconds (None: no limit).
    """

    def __init__(self, open_llm: Callable[[], Awaitable[AsyncLLM]], wait_s: float | None = None) -> None:
        self._open = open_llm
        self._wait_s = wait_s
        self._llm: AsyncLLM | None = None
        self._settled = asyncio.Event()  # it is loaded, or never will be

    @property
    def llm(self) -> AsyncLLM:
        """The engine. ApiError 503 while it is loading, or after it died."""
        llm = self._llm
        if llm is None and self._settled.is_set():
            raise ApiError(503, "the server ends; send the request again", code="aborted", retry_after_s=RETRY_AFTER_S)
        if llm is None:
            raise ApiError(503, "the model is being loaded; try again", code="loading", retry_after_s=RETRY_AFTER_S)
        if llm.failure is not None:
            text = f"{llm.failure}; it is being started again"
            raise ApiError(503, text, code="engine_died", retry_after_s=RETRY_AFTER_S)
        return llm

    async def loaded(self, request: Request) -> AsyncLLM:
        """The engine, waited for while it is loading. The body of the request must have been read. Errors of `llm`."""
        if not self._settled.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s):
                    await until_left(request, self._settled.wait())
        return self.llm

    @property
    def has_died(self) -> bool:
        """Whether the engine died and has not been restarted yet."""
        return self._llm is not None and self._llm.failure is not None

    async def run(self, opened: Callable[[AsyncLLM], None]) -> None:
        """Keep the engine running.

        `opened` is called once. Errors of opening pass through; EngineDiedError gives up.
        """
        try:
            opening = await self._open()
        except BaseException:
            self._settled.set()
            raise
        async with opening as llm:  # from here on its death is noticed, also where nobody asks
            self._llm = llm
            self._settled.set()
            opened(llm)
            while True:
                while llm.healthy:
                    await asyncio.sleep(_LOOK_S)
                _log.error("the engine is started again")
                await llm.restart()
                _log.error("the engine is back")

    async def close(self) -> None:
        """End the engine. Requests that it still computes end with an error."""
        if self._llm is not None:
            await self._llm.close()
