"""Tap: wraps an executor and records named results on their way."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.checkpoint.weights import Weight
from karat.config import LayerShape, RopeConfig
from karat.ops.api import Cache, Loaded, Observed, Observer, Op, RopeTable, State, Step, Tensor
from karat.ops.executor import CacheSpec, Executor, Held, StateSpec


class Tap(Executor):
    """An executor with the same bits as `inner` that keeps a copy of each result whose name `keep` accepts.

    `records` maps a name to its arrays in the order of the steps. Attention scores and weights, named `….scores` and
    `….weights`, have one array a sequence. A sum over ranks has this rank's part beside it, as `….partial`.
    """

    def __init__(self, inner: Executor, keep: Callable[[str], bool] = lambda name: True) -> None:
        self.executor, self.dtype = inner.executor, inner.dtype
        self.default_kv_dtype, self.activations = inner.default_kv_dtype, inner.activations
        self.traits = inner.traits
        self._inner = inner
        self._keep = keep
        self.records: dict[str, list[NDArray[np.floating]]] = {}

    def apply(self, op: Op[Any]) -> Any:
        if isinstance(op, Observed):
            op = replace(op, observe=self._observer(op))
        if (part := op.of_this_rank()) is not None and self._keep(name := f"{part.name}.partial"):
            self._record(name, self._inner.apply(part))
        return op.each(self._record, self._inner.apply(op))

    def _record(self, name: str, x: Tensor) -> Tensor:
        if self._keep(name):
            self.records.setdefault(name, []).append(np.array(self.read(x)))
        return x

    def _observer(self, op: Observed) -> Observer | None:
        """What keeps parts and shows all to the op's own observer; None if there are none to keep or show."""
        prefix, observe = op.name.rpartition(".")[0], op.observe
        kept = {part for part in op.parts if self._keep(f"{prefix}.{part}")}

        def record(part: str, value: NDArray[np.floating]) -> None:
            if part in kept:
                self.records.setdefault(f"{prefix}.{part}", []).append(value)
            if observe:
                observe(part, value)

        return record if observe or kept else None

    @property
    def pending_bytes(self) -> int:
        return self._inner.pending_bytes

    def load(self, weight: Weight, *, later: bool = False) -> Loaded:
        return self._inner.load(weight, later=later)

    def gathers_mapped(self, weight: Weight) -> bool:
        return self._inner.gathers_mapped(weight)

    def load_mapped(self, weight: Weight) -> Loaded:
        return self._inner.load_mapped(weight)

    @property
    def packed_layout(self) -> int | None:
        return self._inner.packed_layout

    def packed(self, loaded: Loaded) -> NDArray[np.uint8]:
        return self._inner.packed(loaded)

    def load_packed(self, dtype: str, shape: tuple[int, ...], packed: NDArray[np.uint8]) -> Loaded:
        return self._inner.load_packed(dtype, shape, packed)

    def load_pending(self, *, spares_core: bool = False) -> None:
        self._inner.load_pending(spares_core=spares_core)

    @property
    def options(self) -> Mapping[str, Any]:
        return self._inner.options

    def bytes_of(self, dtype: str, shape: tuple[int, ...]) -> int:
        return self._inner.bytes_of(dtype, shape)

    def held(self, loaded: Loaded) -> Held:
        return self._inner.held(loaded)

    def rope_table(self, rope: RopeConfig, *, head_dim: int, num_positions: int, growth: float = 0.0) -> RopeTable:
        return self._inner.rope_table(rope, head_dim=head_dim, num_positions=num_positions, growth=growth)

    def available_bytes(self) -> int:
        return self._inner.available_bytes()

    def step_bytes(self, shapes: Collection[LayerShape], *, num_seqs: int, context: int) -> int:
        return self._inner.step_bytes(shapes, num_seqs=num_seqs, context=context)

    def cache_bytes(self, spec: CacheSpec) -> int:
        return self._inner.cache_bytes(spec)

    def new_cache(self, groups: Sequence[CacheSpec]) -> tuple[tuple[Cache, ...], ...]:
        return self._inner.new_cache(groups)

    def state_bytes(self, spec: StateSpec) -> int:
        return self._inner.state_bytes(spec)

    def new_states(self, spec: StateSpec) -> tuple[State, ...]:
        return self._inner.new_states(spec)

    def begin(self, batch: ForwardBatch) -> Step:
        return self._inner.begin(batch)

    def read(self, x: Tensor) -> NDArray[np.floating]:
        return self._inner.read(x)
