"""Traffic: when requests are sent. As many at a time as stated, or at random times (Poisson) of a stated rate."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

import numpy as np

from karat.bench.load.asking import AskedRecord, Manner, converse
from karat.bench.load.prompts import PlannedConversation
from karat.http_client import Client

OnEnd = Callable[[AskedRecord], None]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Either `concurrency` conversations at a time, each followed by the next one at once; or conversations that begin
    at `rate` a second on average, with gaps of an exponential distribution, however many are under way.
    """

    concurrency: int | None = None
    rate: float | None = None

    def __str__(self) -> str:
        return f"{self.concurrency} at a time" if self.rate is None else f"{self.rate:.4g} a second"


@dataclass(slots=True)
class Run:
    """What one run over some conversations gave. `seconds`: from the first request to the last end. `client_s`: of this
    process's processor.
    """

    records: list[AskedRecord]
    seconds: float
    client_s: float


async def run(
    client: Client,
    manner: Manner,
    conversations: Sequence[PlannedConversation],
    load: Traffic,
    rng: np.random.Generator,
    on_end: OnEnd = lambda record: None,
) -> Run:
    """Ask all conversations. `on_end` is called with each request's record."""
    records: list[AskedRecord] = []
    gaps = [0.0] * len(conversations) if load.rate is None else rng.exponential(1 / load.rate, len(conversations))

    async def talk(conversation: PlannedConversation, due: float) -> None:
        for record in await converse(client, manner, conversation, due):
            records.append(record)
            on_end(record)

    async def worker() -> None:
        for conversation in waiting:
            await talk(conversation, perf_counter())

    waiting = iter(conversations)
    begun, processor = perf_counter(), process_time()
    async with asyncio.TaskGroup() as group:
        if load.rate is None:
            assert load.concurrency is not None
            for _ in range(min(load.concurrency, len(conversations))):
                group.create_task(worker())
        else:
            due = begun
            for conversation, gap in zip(conversations, gaps, strict=True):
                due += gap
                if (wait := due - perf_counter()) > 0:
                    await asyncio.sleep(wait)
                group.create_task(talk(conversation, due))
    first = min((record.due for record in records), default=begun)
    last = max((record.ended for record in records), default=begun)
    return Run(records, last - first, process_time() - processor)
