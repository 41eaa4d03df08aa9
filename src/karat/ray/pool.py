"""Pool: Ray Data's actors with an engine each, on the nodes of a cluster, which answer requests.

Ray places the actors, and starts again one that died; what it was asked is asked again, of it or of another. An answer
depends on its request alone, so nobody can tell.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import Any

import msgspec
import pyarrow
import ray

from karat.batch_files.asking import PatientPlace
from karat.batch_files.here import engine_here
from karat.batch_files.journal import BatchAnswer
from karat.engine.async_llm import AsyncLLM, all_of
from karat.errors import ClientError
from karat.ray.memory import as_text
from karat.ray.placement import Room, stay
from karat.server.settings import ServerSettings

ROWS = 32  # that an actor answers together, and in which a batch comes back
_CALLS = 4  # with so many rows each are under way in an actor, so that none waits for the last answer of others
_MAX_QUEUE = 1 << 16
_GIVE_UP_S = 300.0
_CONNECT_S = 10
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor is made of. The options are those of AsyncLLM."""

    model: str | None
    options: dict[str, Any] = {}
    model_names: tuple[str, ...] = ("m",)
    default_max_tokens: int = 4096
    receipts: bool = False

    def encoded(self) -> bytes:
        return _encode(self, enc_hook=as_text)


class Answers:
    """What an actor of a pool has: an engine with the server's app over it, so that a body means what it means there.

    `message` is an encoded Job. The engine is loaded by the first call, in whose event loop it is from then on.
    """

    def __init__(self, message: bytes) -> None:
        self._job = _decode(message, type=Job)
        cores = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)) or 1
        self._options = {"threads": cores, **self._job.options}
        self._cpus: socket.socket | None = stay(cores)
        self._loaded: asyncio.Future[tuple[PatientPlace, str]] | None = None
        self._serving: asyncio.Task[None] | None = None

    async def answer(self, asked: Sequence[tuple[str, bytes]]) -> tuple[str, list[BatchAnswer]]:
        """The model's fingerprint, and the answers to bodies for these routes.

        Errors of loading are Karat's own; ClientError where the engine gives no answers any more.
        """
        if self._loaded is None:
            self._loaded = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._loaded))
        place, fingerprint = await asyncio.shield(self._loaded)
        return fingerprint, await all_of(place.answer(route, body) for route, body in asked)

    async def _serve(self, loaded: "asyncio.Future[tuple[PatientPlace, str]]") -> None:
        job = self._job
        settings = ServerSettings(model_names=job.model_names, default_max_tokens=job.default_max_tokens)
        opening = partial(AsyncLLM.open, job.model, max_queue=_MAX_QUEUE, **self._options)
        try:
            async with engine_here(opening, settings, receipts=job.receipts) as (app, llm):
                # Every answer states it, those of an engine that was started again, too.
                fingerprint = (await llm.fingerprint()).short
                loaded.set_result((PatientPlace(app, _GIVE_UP_S), fingerprint))
                await asyncio.Event().wait()
        except Exception as error:
            if not loaded.done():
                loaded.set_exception(error)
            raise  # else whoever asks hears nothing from the app, and gives up


def in_pool(
    dataset: "ray.data.Dataset", kind: type, job: Job, arguments: Sequence[Any], room: Sequence[Room], memory: int
) -> "ray.data.Dataset":
    """`dataset` as actors of this kind give it: of a class whose calls take tables of Arrow, in so much room."""
    kept = cycle(room)

    def placed() -> dict[str, Any]:
        node, cores = next(kept)
        near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=True)
        return {"num_cpus": cores, "memory": memory, "scheduling_strategy": near}

    return dataset.map_batches(
        kind,
        fn_constructor_args=(job.encoded(), *arguments),
        batch_size=ROWS,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=len(room), max_concurrent_calls_per_actor=_CALLS),
        num_cpus=min(place.cores for place in room),
        memory=memory,
        ray_remote_args_fn=placed,
    )


def connect(address: str) -> None:
    """Join the cluster at this address: "auto", HOST:PORT, or ray://HOST:PORT; "local" starts one here. ClientError if
    there is none.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdecimal():
            socket.create_connection((host, int(port)), _CONNECT_S).close()  # Ray itself would wait for minutes
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        ray.init(address=address, ignore_reinit_error=True, include_dashboard=False, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        said = str(error).strip().partition("\n")[0][:200]
        raise ClientError(f"no cluster of Ray at {address!r}: {said}; see `ray status` there") from error


def with_columns(table: "pyarrow.Table", columns: "dict[str, pyarrow.Array]") -> "pyarrow.Table":
    """The table with these columns, in place of its own where it has such."""
    for name, column in columns.items():
        at = table.schema.get_field_index(name)
        table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    return table
