"""news_of: the updates of all prompts of a request, as they come."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from karat.engine.async_llm import AsyncLLM
from karat.engine.updates import RequestUpdate
from karat.server.inner import Ask, Work


async def news_of(
    llm: AsyncLLM, work: Work, request_id: str, *, progress: bool
) -> AsyncGenerator[tuple[int, RequestUpdate]]:
    """Yields the prompt's number and its update until all prompts have ended. Closing it aborts the others."""

    async def one(number: int, ask: Ask) -> AsyncGenerator[RequestUpdate]:
        stream = llm.stream(
            ask.prompt,
            ask.params,
            request_id=f"{request_id}-{number}",
            priority=work.priority,
            salt=work.salt,
            prompt_progress=progress,
        )
        async with aclosing(stream) as updates:
            async for update in updates:
                yield update

    if len(work.asks) == 1:
        async with aclosing(one(0, work.asks[0])) as updates:
            async for update in updates:
                yield 0, update
        return
    places = asyncio.Semaphore(llm.max_num_seqs)  # so that one request does not fill the queue
    queue: asyncio.Queue[tuple[int, RequestUpdate | BaseException | None]] = asyncio.Queue(1)

    async def pump(number: int, ask: Ask) -> None:
        try:
            async with places, aclosing(one(number, ask)) as updates:
                async for update in updates:
                    await queue.put((number, update))
            await queue.put((number, None))
        except Exception as error:  # noqa: BLE001 - raised by the reader
            await queue.put((number, error))

    tasks = [asyncio.create_task(pump(number, ask)) for number, ask in enumerate(work.asks)]
    try:
        num_open = len(tasks)
        while num_open:
            number, item = await queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield number, item
    finally:
        for task in tasks:
            task.cancel()
        with suppress(BaseException):
            await asyncio.gather(*tasks, return_exceptions=True)
