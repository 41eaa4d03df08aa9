"""follow_all: the updates of all prompts of a request, as they come."""

import asyncio
from collections.abc import Callable

from karat.engine.async_llm import AsyncLLM
from karat.engine.updates import RequestUpdate
from karat.outputs import RequestOutput
from karat.server.asking.asked import Work


async def follow_all(
    llm: AsyncLLM, work: Work, request_id: str, see: Callable[[int, RequestUpdate], None], *, progress: bool
) -> list[RequestOutput]:
    """The outputs of all prompts. `see` gets each prompt's number and update, as in `AsyncLLM.follow`.

    The first error, or a cancellation, ends all.
    """
    most_answers = max(ask.params.n for ask in work.asks)
    places = asyncio.Semaphore(max(1, llm.max_num_seqs // most_answers))  # so that one request does not fill the queue

    async def one(number: int) -> RequestOutput:
        ask = work.asks[number]
        async with places:
            return await llm.follow(
                ask.as_given,
                ask.params,
                lambda update: see(number, update),
                request_id=f"{request_id}-{number}",
                priority=work.priority,
                salt=work.salt,
                prompt_progress=progress,
                receipt=work.receipt,
                resume=work.resume,
            )

    if len(work.asks) == 1:
        return [await one(0)]
    tasks = [asyncio.create_task(one(number)) for number in range(len(work.asks))]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
