"""EngineActor: an engine with the server's app over it. Ray places such actors, and starts again one that died."""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import ray
from msgspec.structs import replace
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
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor is made of: engine `number` of its host, with so many cores. The options are those of AsyncLLM."""

    model: str | None
    options: dict[str, Any]
    model_names: tuple[str, ...]
    default_max_tokens: int
    receipts: bool
    number: int
    cores: int


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """Sequences that an engine computes at a time, and the model's fingerprint."""

    max_num_seqs: int
    fingerprint: str


class Post(msgspec.Struct, frozen=True, array_like=True):
    """A request of the server's protocols."""

    route: str
    body: bytes


class Posted(msgspec.Struct, frozen=True, array_like=True):
    """Its answer."""

    status: int
    request_id: str | None
    body: bytes
    headers: dict[str, str]


class EngineActor:
    """The class of the actors, made of an encoded Job. The model is loaded by the first call."""

    def __init__(self, message: bytes) -> None:
        job = _decode(message, type=Job)
        stay(job.number, job.cores)
        self._open = partial(AsyncLLM.open, job.model, **job.options)
        self._settings = ServerSettings(model_names=job.model_names, default_max_tokens=job.default_max_tokens)
        self._receipts = job.receipts
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._here: tuple[AppHere, AsyncLLM] | None = None

    async def facts(self) -> bytes:
        """The engine's Facts."""
        _, llm = await self._loaded()
        return _encode(Facts(llm.max_num_seqs, (await llm.fingerprint()).short))

    async def post(self, message: bytes) -> bytes:
        """The Posted of a Post."""
        app, _ = await self._loaded()
        asked = _decode(message, type=Post)
        answer, headers = await app.post(asked.route, asked.body)
        return _encode(Posted(answer.status, answer.request_id, answer.body, dict(headers)))

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
        found = _decode(await _asked(self._actor.facts.remote()), type=Facts)
        return found.max_num_seqs, found.fingerprint

    async def post(self, route: str, body: bytes) -> tuple[BatchAnswer, Mapping[str, str]]:
        said = _decode(await _asked(self._actor.post.remote(_encode(Post(route, body)))), type=Posted)
        return BatchAnswer(said.status, said.request_id, said.body), said.headers


def _text(option: Any) -> str:
    """A path of the options as text."""
    if isinstance(option, Path):
        return str(option)
    raise TypeError(f"{type(option).__name__} is no option")


async def _asked(reference: Any) -> bytes:
    """The result of a call. FailedError where the actor died, which Ray may start again."""
    try:
        return bytes(await reference)
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
    job = Job(
        model=model,
        options={},
        model_names=settings.model_names,
        default_max_tokens=settings.default_max_tokens,
        receipts=receipts,
        number=0,
        cores=0,
    )
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
            ).remote(_encode(replace(job, options={**options, **threads}, number=number, cores=each), enc_hook=_text))
            places.append(ActorPlace(actor, f"engine {number} on {node['NodeManagerAddress']}"))
    if not places:
        room = f" and {memory / 1e9:.1f} GB of memory" if memory else ""
        raise UsageError(f"no node of the cluster has {cores or 1} cores{room}; say fewer with --cores-each")
    return places
