"""EngineActor: an engine with the server's app over it. Ray places such actors, and starts again one that died."""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, cast

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from karat.batch_files.asking import AppHere
from karat.batch_files.here import engine_here
from karat.batch_files.journal import BatchAnswer
from karat.engine.async_llm import AsyncLLM
from karat.errors import ClientError, KaratError, UsageError
from karat.http_client import FailedError
from karat.ray.placement import memory_of_engine, stay
from karat.server.settings import ServerSettings

_AT_A_TIME = 4096  # calls of an actor
_CONNECT_S = 10


class EngineActor:
    """The class of the actors. The model is loaded by the first call; options are those of AsyncLLM.

    It is engine `number` of its host, with so many cores.
    """

    def __init__(
        self,
        model: str | None,
        options: Mapping[str, Any],
        settings: ServerSettings,
        *,
        receipts: bool,
        number: int,
        cores: int,
    ) -> None:
        stay(number, cores)
        self._open = partial(AsyncLLM.open, model, **options)
        self._settings, self._receipts = settings, receipts
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._here: tuple[AppHere, AsyncLLM] | None = None

    async def facts(self) -> tuple[int, str]:
        """Sequences that the engine computes at a time, and the model's fingerprint."""
        _, llm = await self._loaded()
        return llm.max_num_seqs, (await llm.fingerprint()).short

    async def post(self, route: str, body: bytes) -> tuple[int, str | None, bytes, dict[str, str]]:
        """A request of the server's protocols, and its answer: status, id, body and headers."""
        app, _ = await self._loaded()
        answer, headers = await app.post(route, body)
        return answer.status, answer.request_id, answer.body, dict(headers)

    async def _loaded(self) -> tuple[AppHere, AsyncLLM]:
        async with self._lock:
            if self._here is None:
                opening = engine_here(self._open, self._settings, receipts=self._receipts)
                app, llm = await self._stack.enter_async_context(opening)
                await llm.fingerprint()  # every answer states it, those of an engine that was started again, too
                self._here = app, llm
        return self._here


class ActorPlace:
    """An actor as a place that a batch asks (karat.batch_files.asking)."""

    def __init__(self, actor: Any, name: str) -> None:
        self._actor = actor
        self.name = name

    async def facts(self) -> tuple[int, str]:
        """As EngineActor has it, once the model is loaded. Errors of loading are Karat's own."""
        return cast(tuple[int, str], await _asked(self._actor.facts.remote()))

    async def post(self, route: str, body: bytes) -> tuple[BatchAnswer, Mapping[str, str]]:
        status, request_id, content, headers = await _asked(self._actor.post.remote(route, body))
        return BatchAnswer(status, request_id, content), headers


async def _asked(reference: Any) -> Any:
    """The result of a call. FailedError where the actor died, which Ray may start again."""
    try:
        return await reference
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, KaratError):
            raise error.cause from None
        raise FailedError(f"failed: {error.cause!r}") from error
    except ray.exceptions.RayError as error:
        raise FailedError(f"the actor is gone ({type(error).__name__})") from error


def connect(address: str) -> None:
    """Join the cluster at this address: "auto", HOST:PORT, or ray://HOST:PORT; "local" starts one here. ClientError if
    there is none.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdecimal():
            socket.create_connection((host, int(port)), _CONNECT_S).close()  # Ray itself would wait for minutes
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
    except (OSError, RuntimeError, ValueError) as error:
        said = str(error).strip().partition("\n")[0][:200]
        raise ClientError(f"no cluster of Ray at {address!r}: {said}; see `ray status` there") from error


def engines(
    model: str | None,
    options: Mapping[str, Any],
    settings: ServerSettings,
    *,
    cores: int | None,
    most: int | None,
    receipts: bool,
) -> list[ActorPlace]:
    """An actor for each `cores` cores of each node (None: one for a node, with all of its cores), `most` at the most.

    There are no more on a node than have room in its memory. UsageError if no node has as many cores, or as much
    memory. An actor whose process dies is started again, on its node if that is there, else where there is room.
    """
    places: list[ActorPlace] = []
    kind, memory = ray.remote(EngineActor), memory_of_engine(model, options)
    for node in ray.nodes():
        here = int(node["Resources"].get("CPU", 0)) if node["Alive"] else 0
        each, room = cores or here, node["Resources"].get("memory", 0)
        for number in range(min(here // each if each else 0, int(room // memory) if memory else here)):
            if most is not None and len(places) == most:
                return places
            near = NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
            threads = {"threads": each} if "threads" not in options else {}
            actor = kind.options(
                num_cpus=each,
                memory=memory,
                max_restarts=-1,
                max_concurrency=_AT_A_TIME,
                scheduling_strategy=near,
            ).remote(model, {**options, **threads}, settings, receipts=receipts, number=number, cores=each)
            places.append(ActorPlace(actor, f"engine {number} on {node['NodeManagerAddress']}"))
    if not places:
        room = f" and {memory / 1e9:.1f} GB of memory" if memory else ""
        raise UsageError(f"no node of the cluster has {cores or 1} cores{room}; say fewer with --cores-each")
    return places
