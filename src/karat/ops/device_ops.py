"""What a device computes for each op: arrays in its memory in, arrays in its memory out (karat.ops.device)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.errors import ExecutorError, NumericsError
from karat.ops import api
from karat.ops.api import HeadGroups, Op
from karat.ops.reference import require

# Arguments of ops.
_WITHOUT_KERNELS = {
    api.PagedAttention: ("sinks",),
    api.Experts: ("biases", "clamp"),
    api.RmsNorm: ("plus_one",),
}


@dataclass(frozen=True, slots=True)
class DeviceCache:
    """K and V of a layer. `layout` is the device's; `group` and `layer` are their numbers in the model."""

    layout: Any
    num_kv_heads: int
    head_dim: int
    group: int
    layer: int


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """Cosines and sines by position [positions, head_dim / 2]."""

    cos: Any
    sin: Any


@dataclass(frozen=True, slots=True)
class DeviceKernels:
    """A device, and the bytes of the integers that linear layers on blocks read."""

    device: Any
    width: int

    def compute(self, op: Op[Any], scores: NDArray[np.float32] | None = None, score_seq: int = 0) -> Any:
        """The result of an op. If `scores` is given, attention writes those of sequence `score_seq` to it.

        Raises ExecutorError for what has no kernels and for arguments outside the contract, NumericsError for a K or V
        that the cache's dtype cannot hold.
        """
        for part in _WITHOUT_KERNELS.get(type(op), ()):
            if getattr(op, part, None) not in (None, False):
                raise ExecutorError(f"{op.label}: a GPU has no kernels for {part} yet")
        if isinstance(op, api.PagedAttention):
            return _paged_attention(self, op, scores, score_seq)
        op.check(lambda x: tuple(x.shape[1:]))
        function = _FUNCTIONS.get(type(op))
        if function is None:
            raise ExecutorError(f"{type(op).__name__}: a GPU has no kernels for this op yet")
        return function(self, op)

    def floats(self, x: Any) -> Any:
        """x in the memory of the device."""
        if isinstance(x, np.ndarray):
            if x.dtype != np.float32:
                raise ExecutorError(f"an input of {x.dtype}; the kernels of a GPU compute in float32")
            return self.device.array(np.ascontiguousarray(x))
        return x


def _numbers(column: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
    """A column of the batch, as kernels read it."""
    return np.ascontiguousarray(column, np.int32)


def _embedding(on: DeviceKernels, op: api.Embedding) -> Any:
    return on.device.embedding(op.table, _numbers(op.step.token_ids))


def _rms_norm(on: DeviceKernels, op: api.RmsNorm) -> Any:
    return on.device.rms_norm(on.floats(op.x), op.weight, op.eps)


def _linear(on: DeviceKernels, op: api.Linear) -> Any:
    x, weight = on.floats(op.x), op.weight
    shape = (weight.rows, weight.columns)
    require(x.shape[-1] == weight.columns, op.name, f"weight [out, in] {shape} for rows of {x.shape[-1]}")
    return on.device.linear(weight, x, on.width, list(op.leaves or (weight.columns,)), op.bias, None)


def _qkv(on: DeviceKernels, op: api.Qkv) -> tuple[Any, ...]:
    parts = (_linear(on, linear) for linear in op.alone())
    return tuple(part.reshape([part.shape[0], part.shape[1] // op.head_dim, op.head_dim]) for part in parts)


def _linears(on: DeviceKernels, op: api.Linears) -> tuple[Any, ...]:
    return tuple(_linear(on, linear) for linear in op.alone())


def _silu_mul(on: DeviceKernels, op: api.SiluMul) -> Any:
    return on.device.silu_mul(on.floats(op.gate), on.floats(op.up))


def _sigmoid_mul(on: DeviceKernels, op: api.SigmoidMul) -> Any:
    return on.device.sigmoid_mul(on.floats(op.x), on.floats(op.gate))


def _add(on: DeviceKernels, op: api.Add) -> Any:
    return on.device.add(on.floats(op.x), on.floats(op.y))


def _scale(on: DeviceKernels, op: api.Scale) -> Any:
    return on.device.scale(on.floats(op.x), op.factor)


def _rope(on: DeviceKernels, op: api.Rope) -> Any:
    x, held = on.floats(op.x), 2 * op.table.cos.shape[-1]
    require(held == x.shape[-1], op.name, f"a table for head_dim {held}, got {x.shape[-1]}")
    return on.device.rope(x, _numbers(op.step.positions), op.table.cos, op.table.sin)


def _kv_write(on: DeviceKernels, op: api.KvWrite) -> None:
    cache, k, v = op.cache, on.floats(op.k), on.floats(op.v)
    lost = on.device.kv_write(k, v, cache.layout, _numbers(op.step.slots(cache.group)))
    if lost >= 0:
        part, at = divmod(lost, prod(k.shape))
        token, rest = divmod(at, cache.num_kv_heads * cache.head_dim)
        values = np.empty(k.shape, np.float32)
        (k, v)[part].read(values)
        raise NumericsError(
            f"{'KV'[part]} of layer {cache.layer}, KV head {rest // cache.head_dim}, token {token} of the step: "
            f"{values.reshape(-1)[at]:.6g} does not fit the KV cache; choose a wider one (--kv-dtype float32, or "
            "LLM(kv_dtype='float32'))"
        )


def _paged_attention(
    on: DeviceKernels, op: api.PagedAttention, scores: NDArray[np.float32] | None, score_seq: int
) -> Any:
    step, cache, q = op.step, op.cache, on.floats(op.q)
    heads = q.shape[1]
    groups = op.groups or HeadGroups.equal(heads, cache.num_kv_heads)
    fits = groups.fit(heads, cache.num_kv_heads)
    require(fits, op.name, f"{heads} heads in {groups} over {cache.num_kv_heads} KV heads")
    made = on.device.attention(
        q,
        cache.layout,
        _numbers(step.positions),
        _numbers(step.query_starts),
        _numbers(step.block_tables(cache.group)),
        step.block_size,
        groups.size,
        groups.first,
        op.scale,
        op.window or 0,
        scores,
        score_seq,
    )
    return made.reshape([q.shape[0], q.shape[1] * q.shape[2]])


def _route(on: DeviceKernels, op: api.Route) -> tuple[Any, Any]:
    routing = op.routing
    plain = api.Routing(routing.num_chosen, routing.renormalised)
    require(routing == plain, op.names[0], "a GPU has no kernels for this routing yet, only for softmax over logits")
    ids, weights = on.device.route(on.floats(op.logits), routing.num_chosen, routing.renormalised)
    return ids, weights


def _experts(on: DeviceKernels, op: api.Experts) -> Any:
    for role in (op.gates, op.ups, op.downs):
        types = sorted({each.format for each in role})
        require(len(types) == 1, op.name, f"experts in {' and '.join(types)}: a GPU's kernels read one type a role")
    ids = on.device.array(_numbers(op.ids)) if isinstance(op.ids, np.ndarray) else op.ids
    given = (on.floats(op.x), ids, on.floats(op.weights))
    matrices = (list(op.gates), list(op.ups), list(op.downs))
    return on.device.experts(*given, *matrices, op.first, list(op.leaves), on.width)


def _select_rows(on: DeviceKernels, op: api.SelectRows) -> Any:
    return on.device.select_rows(on.floats(op.x), _numbers(op.step.logit_rows))


_FUNCTIONS: Mapping[type[Op[Any]], Callable[[DeviceKernels, Any], Any]] = {
    api.Embedding: _embedding,
    api.RmsNorm: _rms_norm,
    api.Linear: _linear,
    api.Qkv: _qkv,
    api.GateUp: _linears,
    api.Linears: _linears,
    api.SiluMul: _silu_mul,
    api.SigmoidMul: _sigmoid_mul,
    api.Add: _add,
    api.Scale: _scale,
    api.Rope: _rope,
    api.KvWrite: _kv_write,
    api.Route: _route,
    api.Experts: _experts,
    api.SelectRows: _select_rows,
}
