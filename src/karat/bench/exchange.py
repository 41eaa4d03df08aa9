"""The time of an all-reduce of one token's hidden state between ranks, by the kernels' own plan."""

import os
import socket
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

from karat.batch import plain_batch
from karat.children.connection import Connection, ConnectionEndedError
from karat.machine.extension import native
from karat.ops.executor import StepLimits
from karat.ops.native import NativeOps
from karat.ops.native_plan import PlanRecorder
from karat.ranks.group import Group
from karat.ranks.lifeline import end_with_parent
from karat.ranks.placement import cores_of_ranks
from karat.ranks.processes import Ranks
from karat.ranks.shared_memory import SharedMemoryGroup, StepWatcher, create_file, make_room

_COLUMNS = 16  # of the layer whose result is reduced: it has next to nothing to compute
_LAYERS = 200
_RUNS = 30


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """All-reduce `floats` numbers over and over, on these CPUs (none: any)."""

    number: int
    floats: int
    slot_bytes: int
    cpus: tuple[int, ...]


def all_reduce_seconds(size: int, floats: int) -> tuple[float, bool]:
    """Seconds of an all-reduce of `floats` numbers over `size` ranks of one thread, and whether each had a core.

    The median of runs of 200, less the time of the same layers without the all-reduce. Raises RankError and
    CapacityError.
    """
    placed = cores_of_ranks(size, 1)
    slot_bytes = 4 * floats
    descriptor = create_file()
    try:
        make_room(descriptor, size, slot_bytes=slot_bytes, whole_bytes=1)
        watcher = StepWatcher(descriptor, size, slot_bytes=slot_bytes, whole_bytes=1)
        ranks = Ranks("karat.bench.exchange", size, [descriptor])
        try:
            number = watcher.next_number(_RUNS + 1)
            messages = [
                msgspec.msgpack.encode(
                    Measure(
                        number=number, floats=floats, slot_bytes=slot_bytes, cpus=tuple(placed[rank]) if placed else ()
                    )
                )
                for rank in range(size)
            ]
            replies = ranks.exchange(messages, signs=watcher)
        finally:
            ranks.close()
    finally:
        os.close(descriptor)
    return max(msgspec.msgpack.decode(reply, type=float) for reply in replies), placed is not None


def main(arguments: Sequence[str]) -> None:
    """A rank: measures once, and answers with seconds."""
    rank, size, end, lifeline, shared = map(int, arguments)
    end_with_parent(lifeline)
    connection = Connection(socket.socket(fileno=end))
    try:
        measure = msgspec.msgpack.decode(connection.receive(), type=Measure)
        if measure.cpus:
            os.sched_setaffinity(0, measure.cpus)
        group = SharedMemoryGroup(
            shared, rank, size, slot_bytes=measure.slot_bytes, whole_bytes=1, spins=bool(measure.cpus)
        )
        group.begin(measure.number)
        weight = native().pack("F32", measure.floats, _COLUMNS, np.zeros(4 * measure.floats * _COLUMNS, np.uint8), 1)
        alone = _seconds(weight, None)
        together = _seconds(weight, group)
        connection.send(msgspec.msgpack.encode((together - alone) / _LAYERS))
        connection.receive()
    except ConnectionEndedError:
        os._exit(0)


def _seconds(weight: Any, group: Group | None) -> float:
    """Seconds of a plan of _LAYERS layers, each of which multiplies a weight with the same input."""
    recorder = PlanRecorder(NativeOps().isa, 1)
    x = recorder.input((_COLUMNS,))
    results = [recorder.linear(x, weight, group=group, name="layer") for _ in range(_LAYERS)]
    batch = plain_batch([0])
    limits = StepLimits(num_tokens=1, num_logit_rows=0, num_seqs=1, context_len=1)
    recorder.finish(limits, results[-1:])
    recorder.fill(x, np.zeros((1, _COLUMNS), np.float32))
    recorder.run(batch)
    times = []
    for _ in range(_RUNS // 2):
        before = perf_counter()
        recorder.run(batch)
        times.append(perf_counter() - before)
    return float(np.median(times))
