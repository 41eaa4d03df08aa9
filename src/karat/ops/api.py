"""The ops that every model is written in: their contracts, for every executor.

A model calls these ops and computes nothing else, so the same code runs on any executor and can be recorded as a plan.
Results are opaque handles: a model must not read their values, shapes or truth. `dtype` below is the executor's compute
dtype (float32, or float64 in the reference). `name` is the canonical name under which a tap records the result: the
Hugging Face module path where one exists (`model.layers.3.self_attn.q_proj`), else a name beside it
(`….self_attn.q_rope`).

Weights are [out_features, in_features]. Every row of a batch is computed independently of the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.checkpoint.weights import Weight
from karat.config import Activations, FloatName, RopeConfig
from karat.ranks.group import Group, Share

Tensor = Any  # a result, opaque to models: an array, or a register of a plan
Loaded = Any  # a weight in the executor's own layout
Step = Any  # the batch of one forward pass, as the executor holds it
Cache = Any  # K and V of all layers
RopeTable = Any  # cosines and sines by position

Observer = Callable[[str, NDArray[np.floating]], None]
Runner = Callable[[ForwardBatch], NDArray[np.floating]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """Size of a paged KV cache: K and V of the KV heads, num_blocks * block_size slots a layer.

    `block_size` is in tokens, `head_dim` in numbers of `dtype`. The layout in memory is the executor's own:
    karat.kv.cache shows it.
    """

    num_layers: int
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: FloatName


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """The largest step that a runner must be able to run; context_len is the longest sequence's, in tokens."""

    num_tokens: int
    num_logit_rows: int
    num_seqs: int
    context_len: int


@dataclass(frozen=True, slots=True)
class HeadGroups:
    """Which KV head a query head reads: query head h reads KV head (first + h) // size.

    The first and the last group may have fewer than `size` query heads, where ranks split a group.
    """

    size: int
    first: int = 0

    @classmethod
    def equal(cls, num_heads: int, num_kv_heads: int) -> "HeadGroups":
        """Groups of num_heads // num_kv_heads. `fit` is False for them where the heads do not divide evenly."""
        return cls(max(1, num_heads // num_kv_heads))

    def fit(self, num_heads: int, num_kv_heads: int) -> bool:
        """Whether `num_heads` query heads read all of `num_kv_heads` KV heads and no others."""
        return 0 <= self.first < self.size and (self.first + num_heads - 1) // self.size + 1 == num_kv_heads


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A loaded weight, read back: `data` [bytes] uint8 in the stored type `dtype` (of karat.checkpoint.Weight)."""

    dtype: str
    data: NDArray[np.uint8]


class Ops(Protocol):
    """An executor. Everything raises ExecutorError on arguments outside the contract."""

    @property
    def executor(self) -> str:
        """The name in karat.ops.registry."""

    @property
    def dtype(self) -> FloatName:
        """The compute dtype of all results."""

    @property
    def default_kv_dtype(self) -> FloatName:
        """The dtype of a cache for which none is asked."""

    @property
    def activations(self) -> Activations:
        """What linear layers on weights in blocks (karat.quant.codes) read rows as: the compute dtype, which rounds
        nothing, or integers (karat.ops.integers). Other layers always read the compute dtype.
        """

    # Set-up and transfer

    def bytes_of(self, dtype: str, shape: tuple[int, ...]) -> int:
        """Bytes of memory that a loaded tensor takes; `dtype` is its stored type (of karat.checkpoint.Weight)."""

    def load(self, weight: Weight, *, later: bool = False) -> Loaded:
        """Convert a stored tensor to the executor's layout. No value changes.

        With `later` the result may be incomplete, and must not be used, until `pending_bytes` is 0.
        """

    @property
    def pending_bytes(self) -> int:
        """Stored bytes of the weights that are loaded and not yet complete."""

    def load_pending(self, *, spares_core: bool = False) -> None:
        """Complete some of these weights: a part that takes about a tenth of a second.

        With `spares_core` one core, if there are several, is left to another thread of this process.
        """

    def held(self, loaded: Loaded) -> Held:
        """The tensor that `load` made, read back to be compared with the file."""

    def rope_table(self, rope: RopeConfig, *, head_dim: int, num_positions: int) -> RopeTable:
        """Cosine and sine for positions 0 … num_positions - 1 (see karat.ops.rope_table)."""

    def cache_bytes(self, spec: CacheSpec) -> int:
        """Bytes of memory that the cache of `new_cache` takes, what the layout rounds up included."""

    def new_cache(self, spec: CacheSpec) -> Cache:
        """An empty cache. Unwritten slots hold arbitrary values (NaN too); they must not affect any result."""

    def begin(self, batch: ForwardBatch) -> Step:
        """The batch as the executor holds it; every op of the step receives it as `step`."""

    def read(self, x: Tensor) -> NDArray[np.floating]:
        """The value of a result as an array of `dtype`."""

    def runner(self, forward: "Callable[[Ops, Step], Tensor]", limits: StepLimits) -> Runner:
        """`forward` as a function of batches. The next call may overwrite the array that a call returned.

        An executor may call `forward` once now, with handles, and replay the recorded ops for each batch.
        """

    # Arithmetic

    def embedding(self, step: Step, table: Loaded, *, share: Share | None = None, name: str) -> Tensor:
        """table[token_ids]: [tokens, hidden].

        With `share`, the table holds this rank's rows of the vocabulary. Each rank looks up the rows it holds, and the
        owner's row is copied to the others. Nothing is added.
        """

    def rms_norm(self, x: Tensor, weight: Loaded, eps: float, *, name: str) -> Tensor:
        """x * (1 / sqrt(mean(x²) + eps)) * weight over the last axis; shape of x."""

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
        """x @ weight.T + bias: [rows, out_features]; bias added after the whole sum.

        `leaves` are the columns at which each leaf of the sum ends (karat.ops.leaves); their number is a power of two.
        A leaf is a sum over its columns, and the result is the sum of a binary tree over the leaves. With `group`, x
        and weight hold this rank's columns, the tree continues over ranks, and every rank gets the whole sum.
        """

    def gather_columns(self, x: Tensor, share: Share, *, name: str) -> Tensor:
        """All ranks' columns of x side by side: [rows, share.total]. Allowed once in a step."""

    def qkv(
        self,
        x: Tensor,
        weights: tuple[Loaded, Loaded, Loaded],
        biases: tuple[Loaded, Loaded, Loaded] | None,
        *,
        head_dim: int,
        names: tuple[str, str, str],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Three linears of one x: q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]."""

    def gate_up(
        self,
        x: Tensor,
        weights: tuple[Loaded, Loaded],
        biases: tuple[Loaded, Loaded] | None,
        *,
        names: tuple[str, str],
    ) -> tuple[Tensor, Tensor]:
        """Two linears of one x: gate and up, each [tokens, intermediate]."""

    def silu_mul(self, gate: Tensor, up: Tensor, *, name: str) -> Tensor:
        """gate * sigmoid(gate) * up."""

    def add(self, x: Tensor, y: Tensor, *, name: str) -> Tensor:
        """x + y; both have the same shape."""

    def rope(self, x: Tensor, table: RopeTable, step: Step, *, name: str) -> Tensor:
        """x [tokens, heads, head_dim], each pair (i, i + head_dim/2) turned by the angle of its token's position."""

    def kv_write(self, k: Tensor, v: Tensor, cache: Cache, layer: int, step: Step) -> None:
        """Store k and v [tokens, kv_heads, head_dim] at the step's slots, rounded to the cache's dtype.

        Raises NumericsError for a finite value that the cache's dtype cannot hold.
        """

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
        """Causal attention of q [tokens, heads, head_dim] over the cache: [tokens, heads * head_dim].

        A token at position p sees keys 0 … p, or the last `window` of them. `groups` maps query heads to KV heads
        (None: equal groups); every KV head of the cache is read. Masked keys are skipped, not multiplied by zero.
        `observe` is called for each sequence with "scores" and "weights", each [heads, new_tokens, context_len]: masked
        scores are -inf, masked weights 0.
        """

    def select_rows(self, x: Tensor, step: Step, *, name: str) -> Tensor:
        """The rows whose logits are wanted: [rows, hidden]."""
