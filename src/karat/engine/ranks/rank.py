"""A tensor-parallel rank: a process that loads its part of a model and computes steps on command.

karat.engine.ranks.rank_model starts it; `main` receives the numbers of inherited descriptors.
"""

import errno
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from karat.batch import ForwardBatch
from karat.children.connection import Connection, ConnectionEndedError
from karat.engine.model_running import Preparation, open_runner
from karat.engine.ranks.messages import LoadRank, RankDone, RankFailed, RankLoaded, Step
from karat.errors import OutOfMemoryError, RankError, packed
from karat.models.opening import open_model
from karat.models.registry import Model, build, read_config
from karat.ops import registry
from karat.ops.executor import Runner
from karat.ranks.lifeline import end_with_parent
from karat.ranks.shared_memory import RankTally, SharedMemoryGroup


def main(arguments: Sequence[str]) -> None:
    """Serve until the connection ends: rank, size, and the descriptors of socket, lifeline and shared memory."""
    serve(arguments, Rank)


def serve(arguments: Sequence[str], kind: "type[Rank]") -> None:
    """`main` for a module with its own `kind` of rank."""
    rank, size, end, lifeline, shared = map(int, arguments)
    end_with_parent(lifeline)
    connection = Connection(socket.socket(fileno=end))
    served = kind(rank, size, shared)
    decoder: Any = msgspec.msgpack.Decoder(kind.COMMANDS)
    try:
        while True:
            connection.send(msgspec.msgpack.encode(served.answer(decoder.decode(connection.receive()))))
    except ConnectionEndedError:
        os._exit(0)  # nothing needs cleaning up, and threads may still be working


class Rank:
    """The state and commands of one rank. `descriptor` is that of the group's shared memory."""

    COMMANDS: Any = LoadRank | Step

    def __init__(self, rank: int, size: int, descriptor: int) -> None:
        self.rank = rank
        self.size = size
        self._descriptor = descriptor
        self._all_cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self._group: SharedMemoryGroup | None = None
        self._model: Model | None = None
        self._run: Runner | None = None

    def answer(self, command: msgspec.Struct) -> msgspec.Struct:
        """Carry out the command. An exception becomes the answer Failed."""
        try:
            return self.do(command)
        except Exception as error:  # noqa: BLE001 - reported to the starting process, which raises it
            work = "loading its part of the model" if isinstance(command, LoadRank) else "computing"
            abandoned = self._group is not None and self._group.abandoned
            return RankFailed(error=packed(_said(error, work), with_traceback=True), abandoned=abandoned)

    def do(self, command: msgspec.Struct) -> msgspec.Struct:
        match command:
            case LoadRank():
                return self._load(command)
            case Step():
                group, run = self._group, self._run
                assert group is not None and run is not None, "a step before a model"
                group.begin(command.number)
                run(ForwardBatch(np.frombuffer(command.batch, np.int32)))
                return RankDone()
        raise AssertionError(f"no such command: {command}")

    def _load(self, load: LoadRank) -> RankLoaded:
        self._group = self._model = self._run = None  # frees the memory of an earlier model
        if self._all_cpus:
            os.sched_setaffinity(0, load.cpus or self._all_cpus)
        with _warnings() as warnings:
            self._group = group = SharedMemoryGroup(
                self._descriptor,
                self.rank,
                self.size,
                slot_bytes=load.slot_bytes,
                whole_bytes=load.whole_bytes,
                spins=bool(load.cpus),
            )
            tally = RankTally(self._descriptor)

            def progress(done: int, total: int) -> None:
                tally.write(self.rank, done)
                group.stir()

            checkpoint = open_model(Path(load.path), load.overrides)
            config = read_config(checkpoint.config).reading(load.num_positions)
            ops = registry.create(load.executor, load.dtype, load.options)
            model = build(
                config,
                ops,
                checkpoint,
                num_positions=load.num_positions,
                prepare=Preparation(load.quantize),
                group=group,
                progress=progress,
            )
            self._run = open_runner(
                model,
                load.kv_dtype,
                load.num_blocks,
                load.limits,
                block_size=load.block_size,
                num_states=load.num_states,
                guard=load.guard,
            )
        self._model = model
        return RankLoaded(bytes_read=model.bytes_read, warnings=tuple(warnings))


def _said(error: Exception, work: str) -> Exception:
    """The error to report: a sentence for a refusal of the system."""
    match error:
        case MemoryError() | OSError(errno=errno.ENOMEM):
            return OutOfMemoryError(
                f"memory ran out while {work}; free some, raise its limits (ulimit -v, a container's memory), or take "
                "a smaller model, context or KV cache"
            )
        case OSError():
            return RankError(
                f"the system refused something while {work} ({error}); see the words in brackets, and the limits of "
                "this process (ulimit -a)"
            )
    return error


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Warnings of karat inside the block, collected instead of logged."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger, keep = logging.getLogger("karat"), Keep(logging.WARNING)
    logger.addHandler(keep)
    logger.propagate = False
    try:
        yield messages
    finally:
        logger.removeHandler(keep)
        logger.propagate = True
