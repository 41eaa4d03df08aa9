"""The engine of a batch in this process's care: the server's own app over it, so that a body means what it means there.

The app has no socket. Its keeper starts an engine that died again, as for a server.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from karat.batch_files.asking import AppHere
from karat.engine.async_llm import AsyncLLM
from karat.server.app import make_app
from karat.server.keeper import Keeper
from karat.server.settings import ServerSettings
from karat.server.state import ServerState


@asynccontextmanager
async def engine_here(
    open_llm: Callable[[], Awaitable[AsyncLLM]], settings: ServerSettings, *, receipts: bool
) -> AsyncIterator[tuple[AppHere, AsyncLLM]]:
    """The app and its engine, loaded. Errors of loading pass through, and that of an engine that died for good."""
    keeper, settings = Keeper(open_llm), replace(settings, is_watched=False)
    loaded: asyncio.Future[AsyncLLM] = asyncio.get_running_loop().create_future()
    body = asyncio.current_task()
    assert body is not None, "a coroutine runs in a task"

    async def keep() -> None:
        try:
            await keeper.run(loaded.set_result)
        except Exception as error:
            if loaded.done():
                body.cancel()  # nobody answers any more; the error is raised below
            else:
                loaded.set_exception(error)
            raise

    keeping = asyncio.create_task(keep())
    try:
        yield AppHere(make_app(keeper, settings, ServerState()), receipts=receipts), await loaded
    except asyncio.CancelledError:
        if keeping.done() and not keeping.cancelled() and (error := keeping.exception()) is not None:
            body.uncancel()
            raise error from None
        raise
    finally:
        keeping.cancel()
        with suppress(BaseException):
            await keeping
        await keeper.close()
