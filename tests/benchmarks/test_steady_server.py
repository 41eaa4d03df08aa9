"""benchmarks.steady_server has the times that it states, as the load generator sees them."""

import asyncio

import pytest

from benchmarks import steady_server
from karat.bench.load.asking import AskedRecord, Manner, converse
from karat.bench.load.prompts import PlannedConversation, Turn
from karat.http_client import Client


def test_times_are_those_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never earlier; how much later a busy machine decides."""
    monkeypatch.setattr(steady_server, "FIRST_S", 0.05)
    monkeypatch.setattr(steady_server, "GAP_S", 0.01)

    async def ask() -> AskedRecord:
        server = await asyncio.start_server(steady_server.talk, "127.0.0.1", 0)
        async with server:
            client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            (record,) = await converse(client, Manner(False, {}), PlannedConversation(None, (Turn("a", 5),)), 0.0)
            await client.close()
            return record

    record = asyncio.run(ask())
    assert record.error is None and record.output_tokens == len(record.events) == 5 and record.prompt_tokens == 64
    assert record.events[0] - record.sent >= 0.05 and record.events[-1] - record.sent >= 0.09
