"""Executor: Ops that compute, with all that is needed before and after a step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.checkpoint.weights import Weight
from karat.config import Activations, FloatName, LayerShape, RopeConfig
from karat.errors import ExecutorError
from karat.machine.memory import available_bytes
from karat.ops.api import Cache, Loaded, Ops, RopeTable, State, Step, Tensor

Rows = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Pending:
    """A submitted step. `rows` is called once: it waits for the step and gives its logits [rows, vocab].

    It raises what the step raised. The rows are valid until the next step is submitted; those of an executor that
    overlaps, as long as this object lives.
    """

    rows: Callable[[], Rows]


class Runner(ABC):
    """A model with its cache, as a function from batches to the logits of their logit_rows."""

    @abstractmethod
    def submit(self, batch: ForwardBatch) -> Pending:
        """Begin a step. Steps write to their slots in the order in which they were submitted."""

    def __call__(self, batch: ForwardBatch) -> Rows:
        """The logits of a step, as soon as it is computed."""
        return self.submit(batch).rows()


class AtOnce(Runner):
    """A runner that computes a step when its rows are asked for, in the thread that asks."""

    def __init__(self, compute: Callable[[ForwardBatch], Rows]) -> None:
        self._compute = compute

    def submit(self, batch: ForwardBatch) -> Pending:
        return Pending(partial(self._compute, batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What may be expected of an executor.

    chunk_invariant      how sequences are cut into steps, and what else is in a step, changes no bit of their logits
    overlaps             a step may be submitted while the one before it is computed
    chooses_activations  loaded weights can be run with any activations (karat.ops.integers)
    """

    chunk_invariant: bool = False
    overlaps: bool = False
    chooses_activations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """Size of a cache group: K [k_dim] and V [v_dim] of the KV heads, num_blocks * block_size slots a layer.

    `layers` are the numbers of its layers in the model, `block_size` is in tokens, k_dim and v_dim in numbers of
    `dtype`. The layout in memory is the executor's own: karat.kv.cache shows it.
    """

    layers: tuple[int, ...]
    num_blocks: int
    block_size: int
    num_kv_heads: int
    k_dim: int
    v_dim: int
    dtype: FloatName


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """Size of the states of layers that keep arrays of the same `shapes`: num_slots slots in each layer.

    A slot has these arrays of one sequence, in the compute dtype. `layers` are numbers of layers in the model.
    """

    layers: tuple[int, ...]
    num_slots: int
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """The largest step that a runner must be able to run; context_len is the longest sequence's, in tokens."""

    num_tokens: int
    num_logit_rows: int
    num_seqs: int
    context_len: int


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A loaded weight, read back: `data` [bytes] uint8 in the stored type `dtype` (of karat.checkpoint.Weight)."""

    dtype: str
    data: NDArray[np.uint8]


class Executor(Ops):
    """Ops with memory of their own. Everything raises ExecutorError on arguments outside the contract.

    executor          the name in karat.ops.registry
    dtype             the compute dtype of all results
    default_kv_dtype  the dtype of a cache for which none is asked
    activations       what linear layers on weights in blocks (karat.quant.CODINGS) read rows as: the compute dtype,
                      which rounds nothing, or integers (karat.ops.integers). Other layers read the compute dtype.
    traits            what may be expected of it
    """

    executor: str
    dtype: FloatName
    default_kv_dtype: FloatName
    activations: Activations
    traits = Traits()

    @property
    def options(self) -> Mapping[str, Any]:
        """Its options (karat.ops.registry), with its own choice where none was given."""
        return {"activations": self.activations}

    @abstractmethod
    def bytes_of(self, dtype: str, shape: tuple[int, ...]) -> int:
        """Bytes of memory that a loaded tensor takes; `dtype` is its stored type (of karat.checkpoint.Weight)."""

    @abstractmethod
    def load(self, weight: Weight, *, later: bool = False) -> Loaded:
        """Convert a stored tensor to the executor's layout. No value changes.

        With `later` the result may be incomplete, and must not be used, until `pending_bytes` is 0.
        """

    def gathers_mapped(self, weight: Weight) -> bool:
        """Whether `load_mapped` takes this tensor."""
        return False

    def load_mapped(self, weight: Weight) -> Loaded:
        """A table for `Ops.embedding` alone, which stays in its mapped file: nothing is read or copied."""
        raise ExecutorError(f"the {self.executor} executor gathers no rows of mapped files")

    @property
    def packed_layout(self) -> int | None:
        """The version of the layout of its matrices, if they can be kept in a file (karat.checkpoint.packed)."""
        return None

    def packed(self, loaded: Loaded) -> NDArray[np.uint8]:
        """The bytes of a matrix that `load` made, as a file of this layout keeps them."""
        raise ExecutorError(f"the {self.executor} executor keeps no packed matrices")

    def load_packed(self, dtype: str, shape: tuple[int, ...], packed: NDArray[np.uint8]) -> Loaded:
        """The matrix of this stored type that begins `packed`, a view of a mapped file: nothing is read or copied."""
        raise ExecutorError(f"the {self.executor} executor keeps no packed matrices")

    @property
    def pending_bytes(self) -> int:
        """Stored bytes of the weights that are loaded and not yet complete."""
        return 0

    def load_pending(self, *, spares_core: bool = False) -> None:
        """Complete some of these weights: a part that takes about a tenth of a second.

        With `spares_core` one core, if there are several, is left to another thread of this process.
        """

    @abstractmethod
    def held(self, loaded: Loaded) -> Held:
        """The tensor that `load` made, read back to be compared with the file."""

    @abstractmethod
    def rope_table(self, rope: RopeConfig, *, head_dim: int, num_positions: int, growth: float = 0.0) -> RopeTable:
        """Cosine and sine for positions 0 … num_positions - 1, times `growth`'s factors (see karat.ops.rope_table)."""

    def available_bytes(self) -> int:
        """Bytes of the executor's memory that a model, its caches and its steps may take."""
        return available_bytes()

    def step_bytes(self, shapes: Collection[LayerShape], *, num_seqs: int, context: int) -> int:
        """Bytes that a runner takes beside weights and caches, on all ranks together.

        It is for layers of these shapes and so many sequences of this length.
        """
        return 0

    @abstractmethod
    def cache_bytes(self, spec: CacheSpec) -> int:
        """Bytes of memory that `new_cache` takes for this group, what the layout rounds up included."""

    @abstractmethod
    def new_cache(self, groups: Sequence[CacheSpec]) -> tuple[tuple[Cache, ...], ...]:
        """Empty caches: for each group the handles of its layers. A handle knows the number of its group in the step.

        Raises ExecutorError for a group that the executor has no cache for: native has none where k_dim and v_dim
        differ.

        Unwritten slots hold arbitrary values (NaN too); they must not affect any result.
        """

    @abstractmethod
    def state_bytes(self, spec: StateSpec) -> int:
        """Bytes of memory that `new_states` takes, what the layout rounds up included."""

    @abstractmethod
    def new_states(self, spec: StateSpec) -> tuple[State, ...]:
        """States of these layers, one handle each. What an unwritten slot holds must not affect any result."""

    def begin(self, batch: ForwardBatch) -> Step:
        """The batch as the executor holds it; every op of the step receives it as `step`."""
        return batch

    def read(self, x: Tensor) -> Rows:
        """The value of a result as an array of `dtype`."""
        value: Rows = x
        return value

    def runner(self, forward: Callable[[Ops, Step], Tensor], limits: StepLimits) -> Runner:
        """`forward` as a function of batches. The next call may overwrite the array that a call returned.

        An executor may call `forward` once now, with handles, and replay the recorded ops for each batch.
        """
        return AtOnce(lambda batch: self.read(forward(self, self.begin(batch))))
