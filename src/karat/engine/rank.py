"""A tensor-parallel rank: a process that loads its part of a model and computes the steps it is told to.

It is started by karat.engine.parallel, never by hand: `main` gets the numbers of descriptors that it inherited.
"""

import logging
import os
import socket
import traceback
from collections.abc import Sequence
from pathlib import Path

from karat.checkpoint import open_model
from karat.dist.connection import Connection, ConnectionEndedError
from karat.dist.lifeline import end_with_parent
from karat.dist.shared_memory import SharedMemoryGroup, StepAbandonedError
from karat.engine.loading import preparation
from karat.engine.rank_messages import Command, Done, Failed, Load, Loaded, Reply, Step, decode_command, encode
from karat.engine.step import model_runner
from karat.errors import KaratError
from karat.models.registry import build, read_config
from karat.ops import registry
from karat.ops.api import CacheSpec, Runner, StepLimits
from karat.ops.guard import Guard


def main(arguments: Sequence[int]) -> None:
    """Serve until the connection ends: rank, size, and the descriptors of socket, lifeline and shared memory."""
    rank, size, end, lifeline, shared = arguments
    end_with_parent(lifeline)
    connection = Connection(socket.socket(fileno=end))
    server = Rank(rank, size, shared)
    try:
        while True:
            connection.send(encode(server.answer(decode_command(connection.receive()))))
    except ConnectionEndedError:
        os._exit(0)  # nothing here is worth a clean-up, and threads may still be at work


class Rank:
    """What one rank has and does. `descriptor` is of the group's shared memory."""

    def __init__(self, rank: int, size: int, descriptor: int) -> None:
        self.rank = rank
        self.size = size
        self._descriptor = descriptor
        self._group: SharedMemoryGroup | None = None
        self._run: Runner | None = None

    def answer(self, command: Command) -> Reply:
        """Do what the command says. What goes wrong becomes the answer."""
        try:
            match command:
                case Load():
                    return self._load(command)
                case Step():
                    return self._step(command)
        except Exception as error:  # noqa: BLE001 - it is told to who started this rank, which raises it
            abandoned = self._group is not None and self._group.channel.abandoned
            known = isinstance(error, KaratError)
            message = str(error) if known else "".join(traceback.format_exception(error))
            return Failed(
                kind=type(error).__name__, message=message, abandoned=abandoned or isinstance(error, StepAbandonedError)
            )

    def _load(self, load: Load) -> Loaded:
        if load.cpus:
            os.sched_setaffinity(0, load.cpus)
        warnings = _Warnings()
        logging.getLogger("karat").addHandler(warnings)
        self._group = SharedMemoryGroup(
            self._descriptor, self.rank, self.size, slot_bytes=load.slot_bytes, whole_bytes=load.whole_bytes
        )
        os.close(self._descriptor)
        checkpoint = open_model(Path(load.path))
        config = read_config(checkpoint.config)
        ops = registry.create(load.executor, load.dtype, load.threads, isa=load.isa)
        model = build(
            config, ops, checkpoint, num_positions=load.num_positions, prepare=preparation(load.quantize),
            group=self._group,
        )  # fmt: skip
        cache = ops.new_cache(CacheSpec(
            num_layers=config.num_layers, num_blocks=load.num_blocks, block_size=load.block_size,
            num_kv_heads=model.num_kv_heads, head_dim=config.head_dim, dtype=load.kv_dtype,
        ))  # fmt: skip
        limits = StepLimits(
            num_tokens=load.max_tokens, num_logit_rows=load.max_rows, num_seqs=load.max_seqs,
            context_len=load.max_context,
        )  # fmt: skip
        self._run = model_runner(model.on(Guard(ops)) if load.guard else model, cache, limits)
        logging.getLogger("karat").removeHandler(warnings)
        return Loaded(bytes_read=model.bytes_read, warnings=tuple(warnings.messages))

    def _step(self, step: Step) -> Done:
        assert self._group is not None and self._run is not None, "a step before a model"
        self._group.begin(step.number)
        self._run(step.batch())
        return Done()


class _Warnings(logging.Handler):
    """Keeps what would have been logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        logging.getLogger("karat").propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
