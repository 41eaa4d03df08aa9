"""Fleet, without a cluster: what it does where no replica can take an answer on."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

pytest.importorskip("ray", reason="Ray cannot be had here")
from karat.engine.stats import EngineStats
from karat.errors import EngineDiedError, unpacked
from karat.ray import fleet
from karat.ray.messages import Ask, Told
from karat.request import SamplingParams
from karat.request_record import Request


class OfAnotherModel:
    """Calls whose only replica has another model."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def answer(self, ask: Ask, lost_s: float) -> AsyncGenerator[Told, None]:
        yield Told("r", "another", [], EngineStats(num_blocks=0))


async def updates_of_one(command: Any) -> list[Any]:
    calls: Any = OfAnotherModel()
    made = fleet.Fleet(calls)
    made.tell(command)
    while not (taken := made.take()):
        await asyncio.sleep(0.02)
    made.close()
    return [update for told in taken for update in told.updates]


def test_an_answer_whose_model_no_replica_has_any_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was waited for without an end, and came to the client as an empty stream."""
    monkeypatch.setattr(fleet, "OTHERS_S", 0.1)
    request = Request("a", (1, 2, 3), SamplingParams(max_tokens=4), seed=1, end_token_ids=())
    (update,) = asyncio.run(asyncio.wait_for(updates_of_one(msgspec.msgpack.encode(request)), 30))
    assert update.ended and update.request_id == "a"
    with pytest.raises(EngineDiedError, match="have another model now; ask again"):
        raise unpacked(*update.refused)
