"""Requests are sent as many at a time, or at the times, that the load says."""

import asyncio
from typing import Any

import numpy as np
import pytest

from karat.bench.load.asking import AskedRecord, Manner
from karat.bench.load.prompts import PlannedConversation, Turn
from karat.bench.load.traffic import Run, Traffic, run
from karat.http_client import Client
from tests.support.scripted_server import DONE, serve, stream, text, url_of

ANSWER = stream(text("one"), text(" two"), DONE)


def sent(number: int, load: Traffic, hold: int = 1) -> tuple[Run, list[int], list[AskedRecord]]:
    """A run over `number` conversations. The server holds answers back until `hold` of them wait, and notes how many
    were open whenever one came.
    """
    open_now, seen, told = 0, [], []

    async def asked() -> Run:
        gate = asyncio.Event()

        async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
            nonlocal open_now
            open_now += 1
            seen.append(open_now)
            if len(seen) >= hold:
                gate.set()
            await gate.wait()
            open_now -= 1
            await ANSWER(body, writer)

        conversations = [PlannedConversation(None, (Turn(f"{i}", 2),)) for i in range(number)]
        async with await serve({"/v1/completions": answer}) as server:
            client = Client(url_of(server))
            try:
                rng = np.random.default_rng(3)
                return await run(client, Manner(False, {}), conversations, load, rng, told.append)
            finally:
                await client.close()

    return asyncio.run(asked()), seen, told


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_never_more_at_a_time_and_always_as_many_as_there_can_be(concurrency: int) -> None:
    found, seen, told = sent(8, Traffic(concurrency=concurrency), hold=concurrency)
    assert max(seen) == concurrency and seen[concurrency - 1] == concurrency
    assert len(found.records) == 8 and told == found.records and all(one.error is None for one in told)
    assert found.seconds == max(r.ended for r in told) - min(r.due for r in told) and found.client_s > 0


def test_a_rate_begins_requests_at_drawn_times_whatever_is_open() -> None:
    """All 6 are open at once, because the server answers none before; due times are sums of the drawn gaps."""
    found, seen, _ = sent(6, Traffic(rate=200), hold=6)
    assert max(seen) == 6
    due = np.sort([record.due for record in found.records])
    gaps = np.random.default_rng(3).exponential(1 / 200, 6)
    np.testing.assert_allclose(np.diff(due), gaps[1:], rtol=0, atol=1e-9)
    assert all(record.sent >= record.due for record in found.records)
