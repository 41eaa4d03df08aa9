"""The reference executor: every op is one plain NumPy function, in float64 (the standard of the checks) or float32."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.checkpoint.weights import Weight
from karat.config import FLOAT_BYTES, Activations, FloatName, RopeConfig
from karat.errors import ExecutorError, NumericsError
from karat.ops.api import CacheSpec, HeadGroups, Held, Observer, Runner, StepLimits
from karat.ops.rope_table import CosSin, cos_sin_table
from karat.ranks.group import Group, Share, tree_sum

Array = NDArray[np.floating]


def require(condition: bool, op: str, message: str) -> None:
    """Raise ExecutorError for an op's arguments outside the contract."""
    if not condition:
        raise ExecutorError(f"{op}: {message}")


@dataclass(frozen=True, slots=True)
class ReferenceCache:
    """k and v [layers, slots, kv_heads, head_dim] in the stored type (bfloat16 as its 16 bits)."""

    k: NDArray[np.generic]
    v: NDArray[np.generic]
    dtype: FloatName


class ReferenceOps:
    """Ops (karat.ops.api) on NumPy arrays. `dtype` is "float64" or "float32"."""

    def __init__(self, dtype: FloatName = "float64") -> None:
        if dtype not in ("float64", "float32"):
            raise ExecutorError(f"dtype={dtype!r}: the reference executor computes in float64 or float32")
        self._name: FloatName = dtype
        self._dtype = np.dtype(dtype)

    @property
    def executor(self) -> str:
        return "reference"

    @property
    def dtype(self) -> FloatName:
        return self._name

    @property
    def default_kv_dtype(self) -> FloatName:
        return self._name

    @property
    def activations(self) -> Activations:
        return "float64" if self._name == "float64" else "float32"

    def bytes_of(self, dtype: str, shape: tuple[int, ...]) -> int:
        return prod(shape) * self._dtype.itemsize

    def load(self, weight: Weight, *, later: bool = False) -> Array:
        return weight.to_array(self._dtype)

    @property
    def pending_bytes(self) -> int:
        return 0

    def load_pending(self, *, spares_core: bool = False) -> None:
        """Nothing is loaded later."""

    def held(self, loaded: Array) -> Held:
        return Held({8: "F64", 4: "F32"}[loaded.itemsize], np.ascontiguousarray(loaded).reshape(-1).view(np.uint8))

    def rope_table(self, rope: RopeConfig, *, head_dim: int, num_positions: int) -> CosSin:
        return cos_sin_table(rope, head_dim=head_dim, num_positions=num_positions, dtype=self._dtype)

    def cache_bytes(self, spec: CacheSpec) -> int:
        slots = spec.num_blocks * spec.block_size
        return 2 * spec.num_layers * slots * spec.num_kv_heads * spec.head_dim * FLOAT_BYTES[spec.dtype]

    def new_cache(self, spec: CacheSpec) -> ReferenceCache:
        shape = (spec.num_layers, spec.num_blocks * spec.block_size, spec.num_kv_heads, spec.head_dim)
        stored = np.uint16 if spec.dtype == "bfloat16" else np.dtype(spec.dtype)
        return ReferenceCache(np.zeros(shape, stored), np.zeros(shape, stored), spec.dtype)

    def begin(self, batch: ForwardBatch) -> ForwardBatch:
        return batch

    def read(self, x: Array) -> Array:
        return x

    def runner(self, forward: Callable[..., Array], limits: StepLimits) -> Runner:
        return lambda batch: forward(self, batch)

    def embedding(self, step: ForwardBatch, table: Array, *, share: Share | None = None, name: str) -> Array:
        if share is None:
            return table[step.token_ids]
        own = share.owners(step.token_ids) == share.group.rank
        rows = np.zeros((step.num_tokens, table.shape[1]), self._dtype)
        rows[own] = table[step.token_ids[own] - share.first]
        return share.rows_of_owners(step.token_ids, rows)

    def rms_norm(self, x: Array, weight: Array, eps: float, *, name: str) -> Array:
        require(x.shape[-1:] == weight.shape, name, f"weight {weight.shape} for rows of {x.shape[-1]}")
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        result: Array = x * (1 / np.sqrt(mean_square + self._dtype.type(eps))) * weight
        return result

    def linear(
        self,
        x: Array,
        weight: Array,
        bias: Array | None = None,
        *,
        leaves: tuple[int, ...] | None = None,
        group: Group | None = None,
        name: str,
    ) -> Array:
        require(x.shape[-1] == weight.shape[1], name, f"weight [out, in] {weight.shape} for rows of {x.shape[-1]}")
        result: Array = x @ weight.T
        if group is not None:
            result = tree_sum(group.all_gather(result))
        return result if bias is None else result + bias

    def gather_columns(self, x: Array, share: Share, *, name: str) -> Array:
        return share.group.gather_columns(x, share)

    def qkv(
        self,
        x: Array,
        weights: tuple[Array, Array, Array],
        biases: tuple[Array, Array, Array] | None,
        *,
        head_dim: int,
        names: tuple[str, str, str],
    ) -> tuple[Array, Array, Array]:
        q, k, v = (
            self.linear(x, weight, bias, name=name).reshape(len(x), -1, head_dim)
            for weight, bias, name in zip(weights, biases or (None, None, None), names, strict=True)
        )
        return q, k, v

    def gate_up(
        self,
        x: Array,
        weights: tuple[Array, Array],
        biases: tuple[Array, Array] | None,
        *,
        names: tuple[str, str],
    ) -> tuple[Array, Array]:
        gate_bias, up_bias = biases or (None, None)
        gate = self.linear(x, weights[0], gate_bias, name=names[0])
        return gate, self.linear(x, weights[1], up_bias, name=names[1])

    def silu_mul(self, gate: Array, up: Array, *, name: str) -> Array:
        decay = np.exp(-np.abs(gate))  # never overflows
        sigmoid = np.where(gate >= 0, 1 / (1 + decay), decay / (1 + decay))
        result: Array = gate * sigmoid * up
        return result

    def add(self, x: Array, y: Array, *, name: str) -> Array:
        require(x.shape == y.shape, name, f"{x.shape} + {y.shape}")
        result: Array = x + y
        return result

    def rope(self, x: Array, table: CosSin, step: ForwardBatch, *, name: str) -> Array:
        half = x.shape[-1] // 2
        require(
            table.cos.shape[-1] == half,
            name,
            f"a table for head_dim {2 * table.cos.shape[-1]}, got {2 * half}",
        )
        cos, sin = (
            table.cos[step.positions][:, None],
            table.sin[step.positions][:, None],
        )  # [tokens, 1, head_dim / 2]
        left, right = x[..., :half], x[..., half:]
        return np.concatenate((left * cos - right * sin, right * cos + left * sin), axis=-1)

    def kv_write(self, k: Array, v: Array, cache: ReferenceCache, layer: int, step: ForwardBatch) -> None:
        for label, values, store in (("K", k, cache.k), ("V", v, cache.v)):
            store[layer, step.slots] = _store(values, cache.dtype, f"{label} of layer {layer}")

    def paged_attention(
        self,
        q: Array,
        cache: ReferenceCache,
        layer: int,
        step: ForwardBatch,
        *,
        scale: float,
        window: int | None,
        name: str,
        groups: HeadGroups | None = None,
        observe: Observer | None = None,
    ) -> Array:
        num_tokens, num_heads, head_dim = q.shape
        num_kv_heads = cache.k.shape[2]
        groups = groups or HeadGroups.equal(num_heads, num_kv_heads)
        fits = groups.fit(num_heads, num_kv_heads)
        require(fits, name, f"{num_heads} heads in {groups} over {num_kv_heads} KV heads")
        # A cut group is filled up with queries of zero; their results are left out.
        held = slice(groups.first, groups.first + num_heads)
        padded = np.zeros((num_tokens, num_kv_heads * groups.size, head_dim), q.dtype)
        padded[:, held] = q
        grouped = padded.reshape(num_tokens, num_kv_heads, groups.size, head_dim)
        out = np.empty_like(grouped)
        for seq, context_len in enumerate(step.context_lens):
            slots = _slots(step, seq, int(context_len))
            keys = np.ascontiguousarray(_restore(cache.k[layer, slots], cache.dtype, self._dtype).transpose(1, 2, 0))
            values = np.ascontiguousarray(_restore(cache.v[layer, slots], cache.dtype, self._dtype).swapaxes(0, 1))
            rows = range(step.query_starts[seq], step.query_starts[seq + 1])
            shape = (num_heads, len(rows), int(context_len))
            all_scores, all_weights = (np.full(shape, -np.inf), np.zeros(shape)) if observe else (None, None)
            for row in rows:
                end = int(step.positions[row]) + 1
                start = 0 if window is None else max(0, end - window)
                scores = (grouped[row] @ keys[:, :, start:end]) * self._dtype.type(scale)  # [kv_heads, group, keys]
                weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
                weights /= weights.sum(axis=-1, keepdims=True)
                out[row] = weights @ values[:, start:end]
                if all_scores is not None and all_weights is not None:
                    all_scores[:, row - rows.start, start:end] = scores.reshape(-1, end - start)[held]
                    all_weights[:, row - rows.start, start:end] = weights.reshape(-1, end - start)[held]
            if observe and all_scores is not None and all_weights is not None:
                observe("scores", all_scores)
                observe("weights", all_weights)
        return out.reshape(num_tokens, -1, head_dim)[:, held].reshape(num_tokens, num_heads * head_dim)

    def select_rows(self, x: Array, step: ForwardBatch, *, name: str) -> Array:
        return x[step.logit_rows]


def _slots(step: ForwardBatch, seq: int, context_len: int) -> NDArray[np.signedinteger]:
    """Slots of positions 0 … context_len - 1 of a sequence."""
    positions = np.arange(context_len)
    slots: NDArray[np.signedinteger] = (
        step.block_tables[seq, positions // step.block_size] * step.block_size + positions % step.block_size
    )
    return slots


def _store(values: Array, dtype: FloatName, what: str) -> NDArray[np.generic]:
    """`values` rounded to the cache's dtype, ties to even; to bfloat16 by way of float32."""
    with np.errstate(over="ignore"):
        if dtype == "bfloat16":
            bits = values.astype(np.float32).view(np.uint32)
            rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
            nan = np.isnan(values)
            stored: NDArray[np.generic] = np.where(nan, np.uint16(0x7FC0), rounded)
        else:
            stored = values.astype(dtype)
    kept = _restore(stored, dtype, np.dtype(np.float64))
    lost = np.isfinite(values) & ~np.isfinite(kept)
    if lost.any():
        token, head, _ = np.argwhere(lost)[0]
        raise NumericsError(
            f"{what}, KV head {head}, token {token} of the step: {values[lost][0]:.6g} does not fit a {dtype} cache; "
            "choose a wider one (--kv-dtype float32, or LLM(kv_dtype='float32'))"
        )
    return stored


def _restore(stored: NDArray[np.generic], dtype: FloatName, compute: np.dtype[np.floating]) -> Array:
    """The cache's values in the compute dtype: exact, except that a float64 cache read in float32 is rounded."""
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(compute)
    return stored.astype(compute)
