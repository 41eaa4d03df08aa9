"""Tap: wraps an executor and records named results on their way."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.checkpoint.weights import Weight
from karat.config import Activations, FloatName, RopeConfig
from karat.ops.api import (
    Cache,
    CacheSpec,
    HeadGroups,
    Held,
    Loaded,
    Observer,
    Ops,
    RopeTable,
    Runner,
    Step,
    StepLimits,
    Tensor,
)
from karat.ranks.group import Group, Share


class Tap:
    """Ops with the same bits as `inner` that keep a copy of each result whose name `keep` accepts.

    `records` maps a name to its arrays in the order of the steps. Attention scores and weights, named `….scores` and
    `….weights`, have one array a sequence. A sum over ranks has this rank's part beside it, as `….partial`.
    """

    def __init__(self, inner: Ops, keep: Callable[[str], bool] = lambda name: True) -> None:
        self._inner = inner
        self._keep = keep
        self.records: dict[str, list[NDArray[np.floating]]] = {}

    def _record(self, name: str, x: Tensor) -> Tensor:
        if self._keep(name):
            self.records.setdefault(name, []).append(np.array(self._inner.read(x)))
        return x

    @property
    def executor(self) -> str:
        return self._inner.executor

    @property
    def dtype(self) -> FloatName:
        return self._inner.dtype

    @property
    def default_kv_dtype(self) -> FloatName:
        return self._inner.default_kv_dtype

    @property
    def activations(self) -> Activations:
        return self._inner.activations

    def load(self, weight: Weight, *, later: bool = False) -> Loaded:
        return self._inner.load(weight, later=later)

    @property
    def pending_bytes(self) -> int:
        return self._inner.pending_bytes

    def load_pending(self, *, spares_core: bool = False) -> None:
        self._inner.load_pending(spares_core=spares_core)

    def bytes_of(self, dtype: str, shape: tuple[int, ...]) -> int:
        return self._inner.bytes_of(dtype, shape)

    def held(self, loaded: Loaded) -> Held:
        return self._inner.held(loaded)

    def rope_table(self, rope: RopeConfig, *, head_dim: int, num_positions: int) -> RopeTable:
        return self._inner.rope_table(rope, head_dim=head_dim, num_positions=num_positions)

    def cache_bytes(self, spec: CacheSpec) -> int:
        return self._inner.cache_bytes(spec)

    def new_cache(self, spec: CacheSpec) -> Cache:
        return self._inner.new_cache(spec)

    def begin(self, batch: ForwardBatch) -> Step:
        return self._inner.begin(batch)

    def read(self, x: Tensor) -> NDArray[np.floating]:
        return self._inner.read(x)

    def runner(self, forward: Callable[[Ops, Step], Tensor], limits: StepLimits) -> Runner:
        """`forward` op by op, so that results are recorded."""
        return lambda batch: self.read(forward(self, self.begin(batch)))

    def embedding(self, step: Step, table: Loaded, *, share: Share | None = None, name: str) -> Tensor:
        return self._record(name, self._inner.embedding(step, table, share=share, name=name))

    def rms_norm(self, x: Tensor, weight: Loaded, eps: float, *, name: str) -> Tensor:
        return self._record(name, self._inner.rms_norm(x, weight, eps, name=name))

    def linear(
        self,
        x: Tensor,
        weight: Loaded,
        bias: Loaded | None = None,
        *,
        leaves: tuple[int, ...] | None = None,
        group: Group | None = None,
        name: str,
    ) -> Tensor:
        if group is not None and self._keep(f"{name}.partial"):
            self._record(f"{name}.partial", self._inner.linear(x, weight, leaves=leaves, name=name))
        return self._record(name, self._inner.linear(x, weight, bias, leaves=leaves, group=group, name=name))

    def gather_columns(self, x: Tensor, share: Share, *, name: str) -> Tensor:
        return self._record(name, self._inner.gather_columns(x, share, name=name))

    def qkv(
        self,
        x: Tensor,
        weights: tuple[Loaded, Loaded, Loaded],
        biases: tuple[Loaded, Loaded, Loaded] | None,
        *,
        head_dim: int,
        names: tuple[str, str, str],
    ) -> tuple[Tensor, Tensor, Tensor]:
        results = self._inner.qkv(x, weights, biases, head_dim=head_dim, names=names)
        q, k, v = (self._record(name, result) for name, result in zip(names, results, strict=True))
        return q, k, v

    def gate_up(
        self,
        x: Tensor,
        weights: tuple[Loaded, Loaded],
        biases: tuple[Loaded, Loaded] | None,
        *,
        names: tuple[str, str],
    ) -> tuple[Tensor, Tensor]:
        gate, up = self._inner.gate_up(x, weights, biases, names=names)
        return self._record(names[0], gate), self._record(names[1], up)

    def silu_mul(self, gate: Tensor, up: Tensor, *, name: str) -> Tensor:
        return self._record(name, self._inner.silu_mul(gate, up, name=name))

    def add(self, x: Tensor, y: Tensor, *, name: str) -> Tensor:
        return self._record(name, self._inner.add(x, y, name=name))

    def rope(self, x: Tensor, table: RopeTable, step: Step, *, name: str) -> Tensor:
        return self._record(name, self._inner.rope(x, table, step, name=name))

    def kv_write(self, k: Tensor, v: Tensor, cache: Cache, layer: int, step: Step) -> None:
        self._inner.kv_write(k, v, cache, layer, step)

    def paged_attention(
        self,
        q: Tensor,
        cache: Cache,
        layer: int,
        step: Step,
        *,
        scale: float,
        window: int | None,
        name: str,
        groups: HeadGroups | None = None,
        observe: Observer | None = None,
    ) -> Tensor:
        prefix = name.rpartition(".")[0]

        def record(what: str, value: NDArray[np.floating]) -> None:
            full = f"{prefix}.{what}"
            if self._keep(full):
                self.records.setdefault(full, []).append(value)
            if observe:
                observe(what, value)

        wanted = observe or self._keep(f"{prefix}.scores") or self._keep(f"{prefix}.weights")
        result = self._inner.paged_attention(
            q,
            cache,
            layer,
            step,
            scale=scale,
            window=window,
            name=name,
            groups=groups,
            observe=record if wanted else None,
        )
        return self._record(name, result)

    def select_rows(self, x: Tensor, step: Step, *, name: str) -> Tensor:
        return self._record(name, self._inner.select_rows(x, step, name=name))
