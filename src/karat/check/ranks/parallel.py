"""Ranks against one process, the control: their weights, and the first result of their traces that differs.

The first op that differs tells whether loading, a layer, or the exchange between ranks is wrong.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from karat.check.model.graph import Graph
from karat.check.ranks.rank import HeldPart, Hold, Holds, RankRecord
from karat.check.record.executors import Steps
from karat.check.replay.gathering import gathered, merged
from karat.check.trace.format import Array, Trace
from karat.check.trace.reading import read_trace
from karat.checkpoint.slices import block_of
from karat.checkpoint.weights import Weight
from karat.config import FloatName
from karat.engine.ranks.messages import RankDone
from karat.engine.ranks.rank_model import ParallelModel
from karat.ranks.group import tree_sum

Kind = Literal["loading", "layer", "exchange"]


@dataclass(frozen=True, slots=True)
class Blame:
    """The first difference between ranks and one process, and what is wrong: loading, a layer, or the exchange."""

    kind: Kind
    name: str
    what: str


def shards_of(ranks: ParallelModel) -> list[tuple[HeldPart, ...]]:
    """The parts of tensors that each rank holds, read back from its executor."""
    return [holds.parts for holds in ranks.command(lambda number: Hold(), Holds)]


def shard_faults(held: Sequence[Sequence[HeldPart]], weights: Mapping[str, Weight]) -> list[Blame]:
    """Compare the shards with the checkpoint, byte by byte; a Blame for each that is wrong or missing.

    The checkpoint's bytes are cut here by the pieces that ranks report, without the code by which ranks cut.
    """
    faults = []
    for source, weight in weights.items():
        covered: dict[int | None, list[tuple[int, int]]] = {}
        for rank, parts in enumerate(held):
            own = [part for part in parts if part.source == source]
            if not own:
                if weight.name == source:  # else it is a tied head, held under the embedding's name
                    faults.append(Blame("loading", source, f"rank {rank} holds nothing of it"))
                continue
            for part in own:
                covered.setdefault(part.axis, []).extend(part.pieces)
                if part.digest != _digest(weight, part):
                    faults.append(
                        Blame("loading", source, f"rank {rank}'s {_place(part)} is not what the file has there")
                    )
        for axis, pieces in covered.items():
            if axis is not None and (lost := _uncovered(pieces, weight.shape[axis])) is not None:
                faults.append(Blame("loading", source, f"no rank holds {'row' if axis == 0 else 'column'} {lost}"))
    return faults


def _digest(weight: Weight, part: HeldPart) -> str:
    """SHA-256 of the checkpoint's bytes of this part, in the part's type."""
    if part.dtype == weight.dtype:
        dtype, data = weight.dtype, weight.data
    else:
        wide: np.dtype[np.floating] = np.dtype(np.float64) if part.dtype == "F64" else np.dtype(np.float32)
        dtype, data = part.dtype, np.ascontiguousarray(weight.to_array(wide)).reshape(-1).view(np.uint8)
    if part.axis is None:
        return hashlib.sha256(data.data).hexdigest()
    if part.axis == 0 or len(weight.shape) == 1:
        rows = data.reshape(weight.shape[0], -1)
        chosen = np.concatenate([np.arange(*piece) for piece in part.pieces])
        return hashlib.sha256(rows[chosen].tobytes()).hexdigest()
    size, num_bytes = (1, wide.itemsize) if dtype != weight.dtype else block_of(dtype)
    blocks = data.reshape(weight.shape[0], weight.shape[1] // size, num_bytes)
    if any(end % size for piece in part.pieces for end in piece):
        return "a block was cut"
    chosen = np.concatenate([np.arange(start // size, stop // size) for start, stop in part.pieces])
    return hashlib.sha256(blocks[:, chosen].tobytes()).hexdigest()


def _place(part: HeldPart) -> str:
    if part.axis is None:
        return "copy"
    spans = ", ".join(f"{start} to {stop - 1}" for start, stop in part.pieces)
    return f"{'rows' if part.axis == 0 else 'columns'} {spans}"


def _uncovered(pieces: Sequence[tuple[int, int]], length: int) -> int | None:
    """The first index that is in no piece; None if all are in one."""
    end = 0
    for start, stop in sorted(pieces):
        if start > end:
            break
        end = max(end, stop)
    return end if end < length else None


def record_ranks(ranks: ParallelModel, steps: Steps, kv_dtype: FloatName) -> Trace:
    """One trace of all ranks over a text; the arrays of rank r are called `name@r`."""
    with ExitStack() as stack:
        files = _files(ranks.size, stack)
        ranks.command(
            lambda number: RankRecord(
                number=number,
                token_ids=steps.prompt,
                cuts=steps.cuts,
                decode=steps.decode,
                kv_dtype=kv_dtype,
                files=files,
            ),
            RankDone,
            num_steps=len(steps.cuts) + steps.decode,
        )
        traces = [read_trace(Path(file)) for file in files]
    return merged(traces)


def _files(count: int, stack: ExitStack) -> tuple[str, ...]:
    """New files that other processes of this user can write to, until the stack ends.

    On Linux they have no name, only this process' descriptors. So nothing is left of them if it is killed.
    """
    if Path("/proc/self/fd").exists():
        opened = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(count)]  # noqa: SIM115
        return tuple(f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in opened)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="karat-ranks-"))
    return tuple(f"{folder}/rank-{number}.trace" for number in range(count))


def first_difference(graph: Graph, control: Trace, trace: Trace, biases: Mapping[str, Array]) -> Blame | None:
    """The first result of the ranks whose bits differ from the control's, and what is wrong; None: all are equal.

    biases: the bias of each row-parallel layer that has one, by the layer's name, in the compute dtype.
    """
    whole, differing = gathered(graph, trace)
    for name, want in control.arrays.items():  # in the order in which they were computed
        node, got = graph.nodes.get(name), whole.arrays.get(name)
        parts = [trace.arrays.get(f"{name}.partial@{rank}") for rank in range(trace.info.ranks)]
        known = [part for part in parts if part is not None]
        if got is None or (node is None and not known):  # a sum may be no result of the graph
            continue
        if node is not None and name in differing:
            kind: Kind = (
                "layer" if node.role.startswith("self_attn.") and node.role != "self_attn.o_proj" else "exchange"
            )
            return Blame(kind, name, "ranks have different results, which should be one and the same")
        if _same(want, got):
            continue
        where = _first_place(want, got)
        if len(known) == trace.info.ranks:
            total = tree_sum(known)
            if name in biases:
                total = total + biases[name]
            if _same(want, total):
                return Blame("exchange", name, f"{where}: the ranks' parts are right, their sum is not")
            return Blame("layer", name, f"{where}: the ranks' parts do not add up to it")
        columns = [trace.arrays.get(f"{name}.part@{rank}") for rank in range(trace.info.ranks)]
        shown = [part for part in columns if part is not None]
        if len(shown) == trace.info.ranks:
            right = _same(want, np.concatenate(shown, axis=1))
            return Blame("exchange" if right else "layer", name, f"{where}: the ranks' columns are {_word(right)}")
        if node is not None and node.kind == "embedding":
            return Blame("exchange", name, f"{where}: a row is not its owner's")
        return Blame("layer", name, where)
    return None


def _same(a: Array, b: Array) -> bool:
    return a.size == b.size and a.reshape(-1).tobytes() == np.asarray(b, a.dtype).reshape(-1).tobytes()


def _word(right: bool) -> str:
    return "right, what was made of them is not" if right else "not those of one process"


def _first_place(want: Array, got: Array) -> str:
    a, b = want.reshape(len(want), -1), got.reshape(len(got), -1)
    if a.shape != b.shape:
        return f"{list(got.shape)} where {list(want.shape)} is right"
    row, column = np.argwhere(a.view(f"u{a.itemsize}") != b.astype(a.dtype).view(f"u{a.itemsize}"))[0]
    return f"row {row}, column {column} is {b[row, column]:.9g} and should be {a[row, column]:.9g}"
