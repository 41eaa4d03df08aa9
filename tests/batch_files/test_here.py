"""The engine of a batch in this process's care."""

import asyncio
import json

import msgspec
import pytest

from karat.batch_files.here import engine_here
from karat.engine.async_llm import AsyncLLM
from karat.request_record import Request
from karat.server.settings import ServerSettings


def test_nobody_watches_an_answer_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the engine tells of it twice, and no step of it is cut short for others."""

    async def answers() -> tuple[list[Request], int]:
        async with engine_here(
            lambda: AsyncLLM.open(threads=1), ServerSettings(model_names=("m",)), receipts=False
        ) as (here, llm):
            followed, follow = list[Request](), llm.follow
            monkeypatch.setattr(llm, "follow", lambda request, see: followed.append(request) or follow(request, see))
            body = {"prompt": "Once", "max_tokens": 40, "ignore_eos": True}
            answer, _ = await here.post("/v1/completions", json.dumps(body).encode())
            usage = msgspec.json.decode(answer.body)["usage"]
            return followed, usage["completion_tokens"]

    (request,), num_tokens = asyncio.run(answers())
    assert not request.is_watched and num_tokens == 40
