"""DevicePlan: a model's ops as a list of launches, and graphs of them for decode (docs/gpu.md).

A model's ops are recorded once, on handles. `joined` makes fewer of them: one launch does what several ops say. A step
of decode is padded to one of a few sizes, whose launches are recorded and then asked for again in one call; what they
read of a step lies in one array. Steps of prompts are launched op by op.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.batch import COLUMNS, GROUP_COLUMNS, ForwardBatch
from karat.ops import api
from karat.ops.api import Op, Ops, Step, Tensor
from karat.ops.device_ops import (
    SPLIT_KEYS,
    DeviceKernels,
    DeviceStep,
    LinearPlus,
    RopeKvWrite,
    look_for_losses,
    num_splits,
    require_within,
)
from karat.ops.executor import AtOnce
from karat.ops.logits import DeviceLogits
from karat.ops.native_plan import Handle

Rows = Any  # NDArray[np.float32], or DeviceLogits in its place

MAX_GRAPH_TOKENS = 64  # of a step that is one graph


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """An op on handles and the handles of its results: one launch, or few. With `digits` layers on blocks read them."""

    op: Op[Any]
    results: tuple[Handle, ...]
    digits: bool = False

    @property
    def reads(self) -> list[Handle]:
        return list(self.op.given(Tensor).values())


class _Recorder(Ops):
    """Notes ops; their results have no values."""

    def __init__(self) -> None:
        self.nodes: list[Launch] = []

    def apply(self, op: Op[Any]) -> Any:
        made: list[Handle] = []

        def new(_: str, __: object) -> Handle:
            made.append(Handle(len(self.nodes), ()))
            return made[-1]

        result = op.each(new, (None,) * len(op.names) if isinstance(op, api.Several) else None)
        self.nodes.append(Launch(op, tuple(made)))
        return result


def recorded(forward: Callable[[Ops, Step], Tensor]) -> tuple[list[Launch], Handle]:
    """The ops of a model, and its result."""
    recorder = _Recorder()
    result = forward(recorder, None)
    assert isinstance(result, Handle), "a model returns the result of an op"
    return recorder.nodes, result


def is_shared(op: Op[Any]) -> bool:
    """Whether ranks exchange results for an op."""
    return op.of_this_rank() is not None or getattr(op, "share", None) is not None


# ---- joining: a rule looks at the first nodes of a list, and gives the node for some of them, or None

Rule = Callable[[Sequence[Launch], Counter[Handle]], tuple[Launch, int] | None]


def _rope_into_cache(nodes: Sequence[Launch], readers: Counter[Handle]) -> tuple[Launch, int] | None:
    """RoPE of q and of k, and writing k and v: k goes to the cache alone."""
    match [node.op for node in nodes[:3]]:
        case [api.Rope() as q, api.Rope() as k, api.KvWrite() as write] if (
            write.k is nodes[1].results[0] and readers[write.k] == 1 and q.table is k.table
        ):
            op = RopeKvWrite(q.x, k.x, write.v, q.table, write.cache, q.step, name=q.name)
            return Launch(op, nodes[0].results), 3
    return None


def _residual_into_linear(nodes: Sequence[Launch], readers: Counter[Handle]) -> tuple[Launch, int] | None:
    """A sum of something and of a layer's result, which nothing else reads."""
    match [node.op for node in nodes[:2]]:
        case [api.Linear() as linear, api.Add() as add] if (
            add.y is nodes[0].results[0] and add.x is not add.y and readers[add.y] == 1
        ):
            op = LinearPlus(
                linear.x, linear.weight, linear.bias, residual=add.x, leaves=linear.leaves, name=linear.name
            )
            return Launch(op, nodes[1].results), 2
    return None


_RULES: tuple[Rule, ...] = (_rope_into_cache, _residual_into_linear)


def joined(nodes: Sequence[Launch], result: Handle) -> list[Launch]:
    """The same results by fewer launches."""
    readers = Counter([result, *(handle for node in nodes for handle in node.reads)])
    made, rest = [], list(nodes)
    while rest:
        node, count = next((found for rule in _RULES if (found := rule(rest, readers))), (rest[0], 1))
        made.append(node)
        rest = rest[count:]
    as_digits: dict[Handle, int] = {}  # what layers on blocks read, and its columns
    for node in made:
        if isinstance(node.op, api.Linear | api.Linears):
            weights = node.op.weights if isinstance(node.op, api.Linears) else (node.op.weight,)
            if any(weight.in_blocks for weight in weights):
                as_digits[node.op.x] = weights[0].columns
    return [replace(node, digits=_makes_digits(node, as_digits)) for node in made]


def _makes_digits(node: Launch, as_digits: dict[Handle, int]) -> bool:
    if not isinstance(node.op, api.RmsNorm | api.GatedUnit | api.PagedAttention):
        return False
    columns = as_digits.get(node.results[0], 0)
    return columns > 0 and (not isinstance(node.op, api.RmsNorm) or len(node.op.weight) == columns)


# ---- steps


def padded(batch: ForwardBatch, num_tokens: int, splits: int) -> ForwardBatch:
    """A step of decode with so many tokens: those that it has not are its first one again.

    Block tables have room for so many splits. What is computed twice has the same bits, and is written twice.
    """
    rows = np.zeros(num_tokens, np.intp)
    rows[: batch.num_tokens] = np.arange(batch.num_tokens)
    width = -(-splits * SPLIT_KEYS // batch.block_size)
    own = {"query_starts": np.arange(num_tokens + 1), "logit_rows": np.arange(num_tokens)}
    columns = [own[each.name] if each.name in own else getattr(batch, each.name)[rows] for each in COLUMNS]
    for group in range(batch.num_groups):
        for each in GROUP_COLUMNS:
            values = getattr(batch, each.name)(group)[rows]
            if each.length == "table":
                table = np.full((num_tokens, width), -1, np.int32)
                table[:, : values.shape[1]] = values[:, :width]
                values = table.reshape(-1)
            columns.append(values)
    widths = [width] * batch.num_groups
    counts = [num_tokens, num_tokens, num_tokens, batch.block_size, batch.num_groups, *widths]
    return ForwardBatch(np.concatenate([counts, *columns]).astype(np.int32))


def graph_size(batch: ForwardBatch) -> tuple[int, int] | None:
    """Tokens and splits of the graph that runs this step: powers of 2, and of 4. None for a step that is no decode."""
    num_tokens = batch.num_tokens
    if not num_tokens == batch.num_seqs == len(batch.logit_rows) <= MAX_GRAPH_TOKENS:
        return None
    splits = 1
    while splits < num_splits(batch):
        splits *= 4
    return 1 << (num_tokens - 1).bit_length(), splits


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step that was asked for, its logits and its notes [caches + rows, 2].

    Notes are losses of the ops that write to caches, then the tops of rows of logits, as kernels tell them.
    """

    step: DeviceStep
    logits: Any
    notes: Any


class DevicePlan(AtOnce):
    """The launches of a model's ops as a runner; `result` are the logits. Errors of the device are those of `room`.

    Raises as DeviceKernels.compute does.
    """

    def __init__(
        self,
        kernels: DeviceKernels,
        nodes: Sequence[Launch],
        result: Handle,
        room: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        super().__init__(self._run)
        self._kernels, self._result, self._room = kernels, result, room
        self._nodes = joined(nodes, result)
        last = {handle: i for i, node in enumerate(self._nodes) for handle in (*node.results, *node.reads)}
        self._ending: list[list[Handle]] = [[] for _ in self._nodes]  # handles that nothing reads after a node
        for handle, i in last.items():
            if handle is not result:
                self._ending[i].append(handle)
        self._caches = [node.op.cache for node in self._nodes if isinstance(node.op, api.KvWrite | RopeKvWrite)]
        self._graphs: dict[tuple[int, int] | None, tuple[_Launched, Any]] = {}  # by size, with the recorded launches
        self._rows = np.empty(0, np.float32)  # of the host, which logits are read to

    def launches(self, batch: ForwardBatch) -> Any:
        """The recorded launches of a step of decode that has run, on what the last step of its size brought."""
        return self._graphs[graph_size(batch)][1]

    def _run(self, batch: ForwardBatch) -> Rows:
        device = self._kernels.device
        with self._room("a step"):
            size = graph_size(batch)
            if size is None:
                step = DeviceStep(device, batch)
                return self._read(self._launch(step, self._new_notes(batch)), batch.num_tokens)
            whole = padded(batch, *size)
            if size not in self._graphs:
                self._graphs[size] = self._record(DeviceStep(device, whole, size[1]))
            launched, recorded = self._graphs[size]
            for (name, group), (least, end) in launched.step.ends.items():
                require_within(batch, name, group, least, end)
            device.write(launched.step.flat, whole.flat)
            recorded.replay()
            return self._read(launched, whole.num_tokens)[: batch.num_tokens]

    def _new_notes(self, batch: ForwardBatch) -> Any:
        return self._kernels.device.array(np.full((len(self._caches) + len(batch.logit_rows), 2), -1, np.int32))

    def _record(self, step: DeviceStep) -> tuple[_Launched, Any]:
        device, notes = self._kernels.device, self._new_notes(step.batch)
        self._launch(step, notes)  # what the device makes at its first launch is no part of the recording
        device.begin_recording()
        try:
            launched = self._launch(step, notes)
        finally:
            recorded = device.end_recording()
        return launched, recorded

    def _launch(self, step: DeviceStep, notes: Any) -> _Launched:
        kernels, num_caches = self._kernels, len(self._caches)
        values: dict[Handle, Any] = {}
        kernels.losses, kernels.num_losses = notes.view(0, [2 * num_caches]), 0
        try:
            kernels.device.fill(notes, 0xFF)
            for node, ending in zip(self._nodes, self._ending, strict=True):
                given: dict[str, Any] = {name: values[handle] for name, handle in node.op.given(Tensor).items()}
                given |= dict.fromkeys(node.op.given(Step), step)
                result = kernels.compute(replace(node.op, **given), digits=node.digits)
                values |= zip(node.results, result if isinstance(result, tuple) else (result,), strict=False)
                for handle in ending:
                    del values[handle]
            logits = values[self._result]
            kernels.device.finite_argmax(logits, notes.view(2 * num_caches, [2 * logits.shape[0]]))
        finally:
            kernels.losses = None
            kernels.forget()
        return _Launched(step, logits, notes)

    def _read(self, launched: _Launched, num_tokens: int) -> Any:
        """The logits, which stay where they are until somebody reads them."""
        logits, num_caches = launched.logits, len(self._caches)
        notes = np.empty(launched.notes.shape, np.int32)
        launched.notes.read(notes)
        look_for_losses(notes[:num_caches], self._caches, num_tokens)
        tops = np.where(notes[num_caches:].any(axis=-1), notes[num_caches:, 0], -1)

        def read() -> Rows:
            size = int(np.prod(logits.shape))
            if len(self._rows) < size:
                self._rows = self._kernels.device.host_array(size)
            rows = self._rows[:size].reshape(logits.shape)
            with self._room("logits"):
                logits.read(rows)
            return rows

        @cache
        def largest(num: int) -> NDArray[np.int32]:
            with self._room("logits"):
                found = self._kernels.device.largest(logits, num)
                pairs = np.empty(found.shape, np.int32)
                found.read(pairs)
            return pairs

        return DeviceLogits(read, tops, largest, logits.shape)
