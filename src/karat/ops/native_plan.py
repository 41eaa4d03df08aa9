"""PlanRecorder: the ops of the native executor, recorded on handles as one plan and run once a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import isfinite, prod
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.config import DEFAULT_ACTIVATIONS
from karat.errors import CapacityError, ExecutorError, NumericsError
from karat.machine.extension import native
from karat.ops import api
from karat.ops.api import OPS, HeadGroups, Op, Ops, Table
from karat.ops.executor import StepLimits
from karat.ranks.group import Group


def _channel(group: Group, name: str) -> Any:
    """The group's shared memory, through which a plan exchanges results; ExecutorError without one."""
    if group.channel is None:
        raise ExecutorError(
            f"{name}: a native plan exchanges results with other ranks through shared memory, and this group has none"
        )
    return group.channel


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """A result of the plan, [rows, *tail]. It has no value before the plan runs; reading it raises ExecutorError."""

    register: int
    tail: tuple[int, ...]

    def _refuse(self, *_: object) -> NoReturn:
        raise ExecutorError(
            "a model read a value, shape or truth while its plan was recorded; a model may only call ops"
        )

    __bool__ = __len__ = __iter__ = __array__ = __getitem__ = __float__ = __int__ = _refuse

    @property
    def shape(self) -> NoReturn:
        self._refuse()


class PlanRecorder(Ops):
    """Ops that are recorded, not computed. After the last one `finish` is called once, and `run` once a step."""

    def __init__(self, isa: str, threads: int, activations: str = DEFAULT_ACTIVATIONS) -> None:
        try:
            self.plan = native().Plan(isa, threads, activations)
        except RuntimeError as refusal:  # the system refuses threads
            raise ExecutorError(str(refusal)) from refusal

    # ---- recording

    def input(self, tail: tuple[int, ...], dtype: str = "float32") -> Handle:
        """An input [rows, *tail] of float32 or int32, to be filled before each run."""
        return Handle(self.plan.input(prod(tail), element=dtype), tail)

    def apply(self, op: Op[Any]) -> Any:
        """The op's result as handles. The step stands for every batch that the plan will run, and is not looked at."""
        op.check(lambda handle: handle.tail)
        record: Callable[[PlanRecorder, Any], Any] = _RECORDED.get(type(op), _recorded)
        return record(self, op)

    def finish(self, limits: StepLimits, kept: Sequence[Handle], *, fusing: bool = True) -> None:
        """End the recording. Only the handles in `kept` have values after a run.

        Tests switch `fusing` of ops off, which changes no bit.
        Raises CapacityError if the buffers of a step within `limits` do not fit into memory.
        """
        registers = [handle.register for handle in kept]
        try:
            self.plan.finish(
                limits.num_tokens, limits.num_logit_rows, limits.num_seqs, limits.context_len, registers, fusing
            )
        except MemoryError as fault:
            raise CapacityError(
                f"a step of {limits.num_tokens} tokens needs larger buffers than this process gets; lower "
                "max_num_batched_tokens (--max-num-batched-tokens), the number of tokens that a step computes"
            ) from fault

    # ---- running

    def fill(self, handle: Handle, values: NDArray[Any]) -> None:
        """Set the value [rows, *tail] of an input, in its dtype."""
        self.plan.write(handle.register, np.ascontiguousarray(values).reshape(len(values), prod(handle.tail)))

    def run(self, batch: ForwardBatch, scores: NDArray[np.float32] | None = None, score_seq: int = 0) -> None:
        """Run one step. If `scores` is given, the attention scores of sequence `score_seq` are written to it.

        Raises NumericsError for a K or V that the cache's dtype cannot hold, ExecutorError for a step beyond the limits
        of the plan.
        """
        try:
            lost = self.plan.run(batch.flat, scores, score_seq)
        except (ValueError, RuntimeError) as fault:
            raise ExecutorError(str(fault)) from fault
        if lost is not None:
            layer, is_value, token, head, number = lost
            raise NumericsError(
                f"{'V' if is_value else 'K'} of layer {layer}, KV head {head}, token {token} of the step: {number:.6g} "
                "does not fit the KV cache; choose a wider one (--kv-dtype float32, or LLM(kv_dtype='float32'))"
            )

    def value(self, handle: Handle) -> NDArray[Any]:
        """The value [rows, *tail] of a kept handle after a run. The next run overwrites it."""
        rows: NDArray[Any] = self.plan.read(handle.register)
        return rows.reshape(len(rows), *handle.tail)


def _require(condition: bool, op: str, message: str) -> None:
    if not condition:
        raise ExecutorError(f"{op}: {message}")


_NOT_RECORDED = ("name", "step", "observe")  # a plan needs no names, gets its step when it runs, and shows nothing


def _recorded(recorder: PlanRecorder, op: Op[Any]) -> Handle | None:
    """The result of the plan's method of the op's name, called with the op's fields.

    Its rows have the shape of the first tensor's.
    """
    given = {field.name: getattr(op, field.name) for field in fields(op) if field.name not in _NOT_RECORDED}
    handles = {name: value for name, value in given.items() if isinstance(value, Handle)}
    registers = {name: handle.register for name, handle in handles.items()}
    register = getattr(recorder.plan, OPS[type(op)])(**given | registers)
    return None if register is None else Handle(register, next(iter(handles.values())).tail)


def _embedding(recorder: PlanRecorder, op: api.Embedding) -> Handle:
    plan, share = recorder.plan, op.share
    if share is None:
        return Handle(plan.embedding(op.table), (op.table.columns,))
    return Handle(plan.embedding_over(_channel(share.group, op.name), op.table, share.ends), (op.table.columns,))


def _linear(recorder: PlanRecorder, op: api.Linear) -> Handle:
    if op.group is None:
        return _linears(recorder, [op])[0]
    _require_fits(op)
    channel, ends = _channel(op.group, op.name), op.leaves or (op.weight.columns,)
    register = recorder.plan.linear_over(channel, op.x.register, op.weight, op.bias, ends)
    return Handle(register, (op.weight.rows,))


def _linears(recorder: PlanRecorder, ops: Sequence[api.Linear]) -> list[Handle]:
    """Layers of one x with one list of leaves."""
    for op in ops:
        _require_fits(op)
    x, weights = ops[0].x, [op.weight for op in ops]
    registers = recorder.plan.linear(x.register, weights, [op.bias for op in ops], ops[0].leaves or x.tail)
    return [Handle(register, (weight.rows,)) for register, weight in zip(registers, weights, strict=True)]


def _require_fits(op: api.Linear) -> None:
    x, weight, bias = op.x, op.weight, op.bias
    shape = (weight.rows, weight.columns)
    _require(x.tail == shape[1:], op.name, f"a weight [out, in] of {shape} for rows of {x.tail}")
    _require(bias is None or len(bias) == weight.rows, op.name, "a bias that does not fit its weight")


def _gather_columns(recorder: PlanRecorder, op: api.GatherColumns) -> Handle:
    share = op.share
    register = recorder.plan.gather(_channel(share.group, op.name), op.x.register, share.first, share.total)
    return Handle(register, (share.total,))


def _qkv(recorder: PlanRecorder, op: api.Qkv) -> tuple[Handle, ...]:
    flat = _linears(recorder, op.alone())
    return tuple(Handle(part.register, (part.tail[0] // op.head_dim, op.head_dim)) for part in flat)


def _several(recorder: PlanRecorder, op: api.Linears) -> tuple[Handle, ...]:
    return tuple(_linears(recorder, op.alone()))


def _split(recorder: PlanRecorder, op: api.Split) -> tuple[Handle, ...]:
    registers = recorder.plan.split(op.x.register, [prod(shape) for shape in op.shapes], op.groups)
    return tuple(Handle(register, shape) for register, shape in zip(registers, op.shapes, strict=True))


def _square_sums(recorder: PlanRecorder, op: api.SquareSums) -> Handle:
    channel = None if op.group is None else _channel(op.group, op.name)
    leaves = (op.q_leaves, op.k_leaves, op.k_first)
    return Handle(recorder.plan.square_sums(op.q.register, op.k.register, *leaves, channel), (2,))


def _l2_norm(recorder: PlanRecorder, op: api.L2Norm) -> Handle:
    return Handle(recorder.plan.l2_norm(op.x.register, op.x.tail[-1], op.eps, op.factor), op.x.tail)


def _rope(recorder: PlanRecorder, op: api.Rope) -> Handle:
    head_dim, table = op.x.tail[-1], op.table
    _require(head_dim >= table.head_dim, op.name, f"a table for head_dim {table.head_dim}, got {head_dim}")
    return Handle(recorder.plan.rope(op.x.register, table, head_dim), op.x.tail)


def _kv_write(recorder: PlanRecorder, op: api.KvWrite) -> None:
    k, v, held = op.k, op.v, (op.cache.num_kv_heads, op.cache.head_dim)
    _require(k.tail == v.tail == held, "kv_write", f"K {k.tail} and V {v.tail} for a cache of {held}")
    _recorded(recorder, op)


def _paged_attention(recorder: PlanRecorder, op: api.PagedAttention) -> Handle:
    q, cache = op.q, op.cache
    heads, head_dim = q.tail
    groups = op.groups or HeadGroups.equal(heads, cache.num_kv_heads)
    fits = head_dim == cache.head_dim and groups.fit(heads, cache.num_kv_heads)
    _require(fits, op.name, f"{q.tail} in {groups} over {cache.num_kv_heads} KV heads of {cache.head_dim}")
    _require(op.observe is None, op.name, "scores are observed op by op, not in a recorded plan")
    _require(op.sinks is None or len(op.sinks) == heads, op.name, f"other sinks than one for {heads} heads")
    window = op.window or 0
    register = recorder.plan.attention(
        q.register, cache, op.scale, window, groups.size, groups.first, op.sinks, op.cap or 0.0
    )
    return Handle(register, (heads * head_dim,))


def _route(recorder: PlanRecorder, op: api.Route) -> tuple[Handle, Handle]:
    ids, weights = recorder.plan.route(op.logits.register, *op.routing.for_kernels())
    width = (op.routing.num_chosen,)
    return Handle(ids, width), Handle(weights, width)


def _experts(recorder: PlanRecorder, op: api.Experts) -> Handle:
    hidden, inner = op.x.tail[-1], op.gates[0].rows if op.gates else 0  # a rank may have none
    into = {(each.rows, each.columns) for each in (*op.gates, *op.ups)}
    back = {(each.rows, each.columns) for each in op.downs}
    fits = into <= {(inner, hidden)} and back <= {(hidden, inner)}
    _require(fits, op.name, f"gates and ups [out, in] of {into}, downs of {back} for rows of {hidden}")
    biases, clamp = op.biases or ((), (), ()), None if op.clamp is None else (op.clamp.limit, op.clamp.alpha)
    _require(clamp is None or all(map(isfinite, clamp)), op.name, f"{op.clamp}; expected finite numbers")
    registers, matrices = (op.x.register, op.ids.register, op.weights.register), (op.gates, op.ups, op.downs)
    channel = None if op.group is None else _channel(op.group, op.name)
    unit, sums = (op.by_gelu, clamp), (op.leaves, op.by_columns, op.first)
    return Handle(recorder.plan.experts(*registers, *matrices, *biases, *unit, *sums, channel), op.x.tail)


def _causal_conv(recorder: PlanRecorder, op: api.CausalConv) -> Handle | None:
    (channels,), kept = op.x.tail, op.state.shapes[0]
    taps = len(op.weight) // channels
    fits = kept == [taps - 1, channels] and len(op.weight) == taps * channels
    _require(fits, op.name, f"a state {kept} for {len(op.weight)} weights of {channels} channels")
    return _recorded(recorder, op)


def _delta_rule(recorder: PlanRecorder, op: api.DeltaRule) -> Handle:
    (heads, v_dim), k_dim, kept = op.v.tail, op.k.tail[1], op.state.shapes[1]
    _require(kept == [heads, k_dim, v_dim], op.name, f"a state {kept} for {(heads, k_dim, v_dim)}")
    registers = [each.register for each in (op.q, op.k, op.v, op.decay, op.beta)]
    return Handle(recorder.plan.delta_rule(*registers, op.state, op.key_heads), (heads * v_dim,))


# Ops of which more is to say than their fields. `_recorded` does all others.
_RECORDED: Table[PlanRecorder] = {
    api.Embedding: _embedding,
    api.Linear: _linear,
    api.GatherColumns: _gather_columns,
    api.Qkv: _qkv,
    api.GateUp: _several,
    api.Linears: _several,
    api.Split: _split,
    api.SquareSums: _square_sums,
    api.L2Norm: _l2_norm,
    api.Rope: _rope,
    api.KvWrite: _kv_write,
    api.PagedAttention: _paged_attention,
    api.Route: _route,
    api.Experts: _experts,
    api.CausalConv: _causal_conv,
    api.DeltaRule: _delta_rule,
}
