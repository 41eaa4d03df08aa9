"""The kernels of a GPU behind Ops, op by op: the numbers of the native executor, bit for bit (docs/gpu.md).

`CudaOps` runs them on an NVIDIA GPU. `EmulatedOps` runs them in their emulation (csrc/gpu/simt.h), which `make
emulated` compiles. It is for tests: it finds what a GPU would leave to chance, and is far slower than the native
executor.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from math import isfinite, prod
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.weights import Weight
from karat.config import DEFAULT_ACTIVATIONS, Activations, FloatName, RopeConfig, Settings
from karat.errors import ExecutorError, NumericsError
from karat.machine.extension import native
from karat.ops import api
from karat.ops.api import HeadGroups, Loaded, Op, Ops, Step, Tensor
from karat.ops.executor import CacheSpec, Executor, Held, Runner, StepLimits
from karat.ops.integers import WIDTHS
from karat.ops.native import REGION_SLOTS, NativeOps
from karat.ops.reference import require
from karat.ops.rope_table import CosSin, cos_sin_table
from karat.ranks.group import Share, tree_sum

F32 = NDArray[np.float32]

_CACHE_TYPES: tuple[FloatName, ...] = ("float32", "float16", "bfloat16")  # CacheType in csrc/contract/kernels.h
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d+)\.")  # in the name of a weight

_WITHOUT_KERNELS = {api.PagedAttention: ("sinks",), api.Experts: ("biases", "clamp")}  # arguments of ops

# By executor: its module, what the module is, and how to get it.
_MODULES = {
    "cuda": (
        "karat_cuda._cuda",
        "module for NVIDIA GPUs",
        "`make cuda` in a clone builds it, with nvcc; --device cpu has the same bits",
    ),
    "cuda-emulated": ("karat._emulated", "emulated GPU", "`make emulated` in a clone compiles it"),
}


@cache
def _imported(executor: str) -> ModuleType | str:
    """The module of an executor, or why it cannot be had."""
    name, what, how = _MODULES[executor]
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return f"this installation has no {what}; {how}"
    except ImportError as error:
        return f"the {what} cannot be loaded ({error}); {how}"


def missing(executor: str) -> str | None:
    """Why the module of "cuda" or "cuda-emulated" cannot be had here; None: it can."""
    found = _imported(executor)
    return found if isinstance(found, str) else None


def _module(executor: str) -> ModuleType:
    found = _imported(executor)
    if isinstance(found, str):
        raise ExecutorError(f"the {executor} executor is not available: {found}")
    return found


@dataclass(frozen=True, slots=True)
class DeviceCache:
    """K and V of a layer. `layout` is the device's; `group` and `layer` are their numbers in the model."""

    layout: Any
    dtype: FloatName
    num_kv_heads: int
    head_dim: int
    group: int
    layer: int


class DeviceOps(NativeOps):
    """An executor (karat.ops.executor) with the kernels of a GPU. The first `host_layers` layers are loaded for native
    kernels, which compute what reads them on the CPU, by `threads` threads; so does each op follow its weight or cache.

    Raises ExecutorError where the executor's module is missing.
    """

    def __init__(
        self,
        dtype: FloatName = "float32",
        *,
        threads: int | None = None,
        activations: Activations = DEFAULT_ACTIVATIONS,
        host_layers: int = 0,
    ) -> None:
        self._module = _module(self.executor)
        super().__init__(dtype, isa=Settings.from_env().isa, threads=threads, activations=activations)
        self.host_layers = host_layers
        self.device = self._open()

    def _open(self) -> Any:
        """The device."""
        raise NotImplementedError

    @property
    def options(self) -> Mapping[str, Any]:
        mine: dict[str, Any] = {"activations": self.activations}
        return mine | ({"host_layers": self.host_layers, "threads": self.threads} if self.host_layers else {})

    def load(self, weight: Weight, *, later: bool = False) -> Loaded:
        """A matrix packed in its stored type, a vector as float32. All of it is there at once."""
        layer = _LAYER.search(weight.name)
        if layer is not None and int(layer[1]) < self.host_layers:
            return super().load(weight)
        if len(weight.shape) == 1:
            return np.ascontiguousarray(weight.to_array(np.dtype(np.float32)))
        weight = self.with_kernels(weight)
        order = None if weight.row_order is None else np.ascontiguousarray(weight.row_order(), np.int64)
        first_byte = 0 if weight.row_span is None else weight.row_span[0]
        return self._module.DeviceMatrix(
            weight.dtype, *weight.shape, weight.stored, weight.row_bytes, first_byte, order
        )

    def held(self, loaded: Loaded) -> Held:
        if _is_native(loaded):
            return super().held(loaded)
        if isinstance(loaded, np.ndarray):
            return Held("F32", loaded.view(np.uint8))
        stored = np.empty(loaded.stored_bytes, np.uint8)
        loaded.read(stored)
        return Held(loaded.format, stored)

    def rope_table(self, rope: RopeConfig, *, head_dim: int, num_positions: int) -> CosSin:
        """Rotations are always the device's; the table is for all layers."""
        return cos_sin_table(rope, head_dim=head_dim, num_positions=num_positions, dtype=np.dtype(np.float32))

    def _cache_group(self, spec: CacheSpec, group: int) -> tuple[Any, ...]:
        count = sum(layer < self.host_layers for layer in spec.layers)
        of_host = super()._cache_group(replace(spec, layers=spec.layers[:count]), group) if count else ()
        return of_host + self._device_caches(replace(spec, layers=spec.layers[count:]), group)

    def _device_caches(self, spec: CacheSpec, group: int) -> tuple[DeviceCache, ...]:
        if not spec.layers:
            return ()
        regions = -(-spec.num_blocks * spec.block_size // REGION_SLOTS)
        layer_bytes = self.cache_bytes(spec) // len(spec.layers) // regions
        data = np.full((regions, layer_bytes * len(spec.layers)), 0xFF, np.uint8)  # NaN in every type
        return tuple(
            DeviceCache(
                self._module.DeviceCache(
                    data, _CACHE_TYPES.index(spec.dtype), spec.num_kv_heads, spec.k_dim, place * layer_bytes
                ),
                spec.dtype,
                spec.num_kv_heads,
                spec.k_dim,
                group,
                layer,
            )
            for place, layer in enumerate(spec.layers)
        )

    def runner(self, forward: Callable[[Ops, Step], Tensor], limits: StepLimits) -> Runner:
        """`forward`, called for every step."""
        return Executor.runner(self, forward, limits)

    def apply(self, op: Op[Any]) -> Any:
        """Ranks exchange results by way of the host."""
        match op:
            case api.Embedding(share=Share() as share):
                return self._embedding_over(op, share)
            case api.Linear(group=group) if group is not None:
                whole = tree_sum(group.all_gather(self.apply(replace(op, bias=None, group=None))))
                return whole if op.bias is None else whole + _values(op.bias)
            case api.Experts(group=group) if group is not None:
                return tree_sum(group.all_gather(self.apply(replace(op, group=None))))
            case api.GatherColumns(share=share):
                return share.group.gather_columns(op.x, share)
        return super().apply(op)

    def _run(self, op: Op[Any], scores: F32 | None = None, score_seq: int = 0) -> Any:
        if _is_native(_held_by(op)):
            return super()._run(op, scores, score_seq)
        for part in _WITHOUT_KERNELS.get(type(op), ()):
            if getattr(op, part, None) is not None:
                name = getattr(op, "name", type(op).__name__)
                raise ExecutorError(f"{name}: the {self.executor} executor has no kernels for {part} yet")
        if isinstance(op, api.PagedAttention):
            return _paged_attention(self, op, scores, score_seq)
        function = _FUNCTIONS.get(type(op))
        if function is None:
            raise ExecutorError(f"{type(op).__name__}: the {self.executor} executor has no kernels for this op yet")
        return function(self, op)


class EmulatedOps(DeviceOps):
    """The emulation. The order in which threads and blocks of a launch run is random; `seed` chooses it, and no result
    depends on it.
    """

    executor = "cuda-emulated"

    def __init__(self, dtype: FloatName = "float32", *, seed: int = 0, **options: Any) -> None:
        self._seed = seed
        super().__init__(dtype, **options)

    def _open(self) -> Any:
        return self._module.Device(self._seed)


class CudaOps(DeviceOps):
    """The GPU of this number, as the driver counts those that the process may see."""

    executor = "cuda"

    def __init__(self, dtype: FloatName = "float32", *, number: int = 0, **options: Any) -> None:
        self._number = number
        super().__init__(dtype, **options)

    def _open(self) -> Any:
        return self._module.Device(self._number)

    @property
    def options(self) -> Mapping[str, Any]:
        return {**super().options, "device": f"cuda:{self._number}"}


def _is_native(handle: Any) -> bool:
    """Whether a weight or a cache is one of the native executor."""
    return type(handle).__module__ == native().__name__


def _held_by(op: Op[Any]) -> Any:
    """The first weight of an op, or its cache, or None."""
    for name in ("weight", "cache", "table", "gates") if not isinstance(op, api.Linears) else ("weights",):
        if (held := getattr(op, name, None)) is not None:
            return held[0] if isinstance(held, tuple) else held
    return None


def _values(vector: Any) -> F32:
    values: F32 = vector if isinstance(vector, np.ndarray) else vector.values()
    return values


def _array(x: Any) -> F32:
    if x.dtype != np.float32:
        raise ExecutorError(f"an input of {x.dtype}; the kernels of a GPU compute in float32")
    return np.ascontiguousarray(x)


def _embedding(ops: DeviceOps, op: api.Embedding) -> F32:
    ids = np.ascontiguousarray(op.step.token_ids, np.int32)
    out = np.empty((len(ids), op.table.columns), np.float32)
    ops.device.embedding(op.table, ids, out)
    return out


def _rms_norm(ops: DeviceOps, op: api.RmsNorm) -> F32:
    x = _array(op.x)
    fits = len(op.weight) in (x.shape[-1], prod(x.shape[1:]))
    require(fits, op.name, f"a weight of {len(op.weight)} for rows of {x.shape[-1]}")
    out = np.empty_like(x)
    ops.device.rms_norm(x, op.weight, op.eps, out)
    return out


def _linear(ops: DeviceOps, op: api.Linear) -> F32:
    x, weight = _array(op.x), op.weight
    shape = (weight.rows, weight.columns)
    require(x.shape[-1] == weight.columns, op.name, f"weight [out, in] {shape} for rows of {x.shape[-1]}")
    out = np.empty((len(x), weight.rows), np.float32)
    width = list(WIDTHS).index(ops.activations) + 1
    ops.device.linear(weight, x, width, list(op.leaves or (weight.columns,)), op.bias, None, out)
    return out


def _qkv(ops: DeviceOps, op: api.Qkv) -> tuple[F32, ...]:
    return tuple(_linear(ops, linear).reshape(len(op.x), -1, op.head_dim) for linear in op.alone())


def _gate_up(ops: DeviceOps, op: api.GateUp) -> tuple[F32, ...]:
    return tuple(_linear(ops, linear) for linear in op.alone())


def _silu_mul(ops: DeviceOps, op: api.SiluMul) -> F32:
    gate, up = _array(op.gate), _array(op.up)
    require(gate.shape == up.shape, op.name, f"gate {gate.shape} and up {up.shape}")
    out = np.empty_like(up)
    ops.device.silu_mul(gate, up, out)
    return out


def _sigmoid_mul(ops: DeviceOps, op: api.SigmoidMul) -> F32:
    x, gate = _array(op.x), _array(op.gate)
    columns, gates = prod(x.shape[1:]), prod(gate.shape[1:])
    fits = len(x) == len(gate) and gates > 0 and columns % gates == 0
    require(fits, op.name, f"a gate {gate.shape} for {x.shape}")
    out = np.empty_like(x)
    ops.device.sigmoid_mul(x, gate, out)
    return out


def _add(ops: DeviceOps, op: api.Add) -> F32:
    x, y = _array(op.x), _array(op.y)
    require(x.shape == y.shape, op.name, f"{x.shape} + {y.shape}")
    out = np.empty_like(x)
    ops.device.add(x, y, out)
    return out


def _scale(ops: DeviceOps, op: api.Scale) -> F32:
    x = _array(op.x)
    require(isfinite(op.factor), op.name, f"factor={op.factor}; expected a finite number")
    out = np.empty_like(x)
    ops.device.scale(x, op.factor, out)
    return out


def _rope(ops: DeviceOps, op: api.Rope) -> F32:
    x, held = _array(op.x), 2 * op.table.cos.shape[-1]
    require(held == x.shape[-1], op.name, f"a table for head_dim {held}, got {x.shape[-1]}")
    out = np.empty_like(x)
    ops.device.rope(x, _numbers(op.step.positions), op.table.cos, op.table.sin, out)
    return out


def _kv_write(ops: DeviceOps, op: api.KvWrite) -> None:
    cache, k, v = op.cache, _array(op.k), _array(op.v)
    lost = ops.device.kv_write(k, v, cache.layout, _numbers(op.step.slots(cache.group)))
    if lost >= 0:
        part, at = divmod(lost, k.size)
        token, rest = divmod(at, cache.num_kv_heads * cache.head_dim)
        value = (k, v)[part].reshape(-1)[at]
        raise NumericsError(
            f"{'KV'[part]} of layer {cache.layer}, KV head {rest // cache.head_dim}, token {token} of the step: "
            f"{value:.6g} does not fit the KV cache; choose a wider one (--kv-dtype float32, or "
            "LLM(kv_dtype='float32'))"
        )


def _paged_attention(ops: DeviceOps, op: api.PagedAttention, scores: F32 | None, score_seq: int) -> F32:
    step, cache, q = op.step, op.cache, _array(op.q)
    heads = q.shape[1]
    groups = op.groups or HeadGroups.equal(heads, cache.num_kv_heads)
    fits = groups.fit(heads, cache.num_kv_heads)
    require(fits, op.name, f"{heads} heads in {groups} over {cache.num_kv_heads} KV heads")
    out = np.empty_like(q)
    ops.device.attention(
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
        out,
    )
    return out.reshape(len(q), -1)


def _route(ops: DeviceOps, op: api.Route) -> tuple[NDArray[np.int32], F32]:
    logits = _array(op.logits)
    experts = logits.shape[-1]
    require(1 <= op.num_chosen <= experts, op.names[0], f"{op.num_chosen} chosen of {experts} experts")
    ids = np.empty((len(logits), op.num_chosen), np.int32)
    weights = np.empty(ids.shape, np.float32)
    ops.device.route(logits, op.renormalised, ids, weights)
    return ids, weights


def _experts(ops: DeviceOps, op: api.Experts) -> F32:
    for role in (op.gates, op.ups, op.downs):
        types = sorted({each.format for each in role})
        require(len(types) == 1, op.name, f"experts in {' and '.join(types)}: a GPU's kernels read one type a role")
    x = _array(op.x)
    out = np.empty_like(x)
    width = list(WIDTHS).index(ops.activations) + 1
    given = (x, np.ascontiguousarray(op.ids), _array(op.weights))
    ops.device.experts(*given, list(op.gates), list(op.ups), list(op.downs), op.first, list(op.leaves), width, out)
    return out


def _select_rows(ops: DeviceOps, op: api.SelectRows) -> F32:
    x, rows = _array(op.x), _numbers(op.step.logit_rows)
    out = np.empty((len(rows), x.shape[-1]), np.float32)
    ops.device.select_rows(x, rows, out)
    return out


def _numbers(column: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
    """A column of the batch, as kernels read it."""
    return np.ascontiguousarray(column, np.int32)


_FUNCTIONS: Mapping[type[Op[Any]], Callable[[DeviceOps, Any], Any]] = {
    api.Embedding: _embedding,
    api.RmsNorm: _rms_norm,
    api.Linear: _linear,
    api.Qkv: _qkv,
    api.GateUp: _gate_up,
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
