"""What an op needs beside its inputs: tensors, tokens, the type of the cache."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from karat.check.model.integers import as_integers, moved
from karat.check.model.rounding import rounded
from karat.check.model.tokens import Tokens
from karat.config import FloatName, RopeConfig
from karat.ops.rope_table import inverse_frequencies
from karat.quant import CODINGS

Array = NDArray[np.floating]
DType = np.dtype[np.floating]

_MAX_PART = 1 << 23  # elements of a weight that are widened at a time


class Weights(Protocol):
    """The tensors of a checkpoint by name. A tensor is widened when it is asked for."""

    def array(self, name: str, dtype: DType) -> Array: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def stored_type(self, name: str) -> str: ...

    def rows(self, name: str, dtype: DType, start: int, stop: int) -> Array: ...


class Context:
    """What evaluating a node needs beside its inputs.

    logit_rows: the tokens that have logits.
    kv_dtype: the type that the cache stores; None: the type of the computation.
    integers: the width of the integers that weights in blocks read (karat.ops.integers); None: they read x as it is.
    jitter: RoPE's angles are larger by this relative amount.
    loose: before the cache or integers round a number, it moves by this part of its row's largest value, up or down by
    chance. So half of the numbers near a tie fall to either side; with a negative `loose` they fall to the other one.
    rounding: what an engine's own rounding makes of the inputs of an expert's matrix, by chance.
    """

    def __init__(
        self,
        weights: Weights,
        tokens: Tokens,
        logit_rows: NDArray[np.int64],
        kv_dtype: FloatName | None = None,
        integers: str | None = None,
    ) -> None:
        self.weights = weights
        self.tokens = tokens
        self.logit_rows = logit_rows
        self.kv_dtype = kv_dtype
        self.integers = integers
        self.jitter = self.loose = 0.0
        self.rounding: Callable[[Array, str], Array] | None = None
        self._frequencies: dict[tuple[RopeConfig, int], NDArray[np.float32]] = {}

    def disturbed(
        self, *, jitter: float = 0.0, loose: float = 0.0, rounding: Callable[[Array, str], Array] | None = None
    ) -> "Context":
        """The same context with angles, cached numbers and what experts read moved."""
        other = Context(self.weights, self.tokens, self.logit_rows, self.kv_dtype, self.integers)
        other.jitter, other.loose, other.rounding = jitter, loose, rounding
        other._frequencies = self._frequencies
        return other

    def exact(self) -> "Context":
        """The same context without integers."""
        if self.integers is None:
            return self
        other = Context(self.weights, self.tokens, self.logit_rows, self.kv_dtype)
        other._frequencies = self._frequencies
        return other

    def storing(self, kv_dtype: FloatName) -> "Context":
        """The same context with another type of the cache."""
        other = Context(self.weights, self.tokens, self.logit_rows, kv_dtype, self.integers)
        other.jitter, other.loose, other._frequencies = self.jitter, self.loose, self._frequencies
        return other

    def cached(self, x: Array) -> Array:
        """`x` as the cache gives it back."""
        if self.kv_dtype is None:
            return x
        loosened = x + self._moves(x) if self.loose else x
        return rounded(loosened.astype(x.dtype, copy=False), self.kv_dtype).astype(x.dtype, copy=False)

    def reads_integers(self, weight: str) -> bool:
        """Whether a product with this weight reads integers."""
        return self.integers is not None and self.weights.stored_type(weight) in CODINGS

    def read(self, x: Array, weight: str) -> Array:
        """x [tokens, features] as a product with this weight reads it."""
        if self.integers is None or not self.reads_integers(weight):
            return x
        return as_integers(moved(x, self._moves(x), self.integers) if self.loose else x, self.integers)

    def read_by_expert(self, x: Array, weight: str) -> Array:
        """The same of an expert's matrix, whose inputs nobody moves before."""
        x = self.read(x, weight)
        return x if self.rounding is None else self.rounding(x, weight)

    def _moves(self, x: Array) -> Array:
        """By how much each number of x is moved before it is rounded."""
        largest = np.abs(x).max(axis=-1, keepdims=True, initial=0)
        signs = np.random.default_rng(x.shape).choice((-1.0, 1.0), x.shape)
        return self.loose * largest * signs

    def frequencies(self, rope: RopeConfig, head_dim: int) -> NDArray[np.float32]:
        if (rope, head_dim) not in self._frequencies:
            self._frequencies[rope, head_dim] = inverse_frequencies(rope, head_dim)
        return self._frequencies[rope, head_dim]


class Matrix(Protocol):
    """A weight [out, in] in the type of the computation."""

    @property
    def num_rows(self) -> int: ...

    def rows_at(self, ids: NDArray[np.int64]) -> Array:
        """[len(ids), in]"""
        ...

    def product(self, x: Array) -> Array:
        """x @ weight.T"""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class WithBias:
    """`matrix`, to whose products `bias` is added."""

    matrix: Matrix
    bias: Array

    @property
    def num_rows(self) -> int:
        return self.matrix.num_rows

    def rows_at(self, ids: NDArray[np.int64]) -> Array:
        raise AssertionError("rows of a matrix with a bias are not gathered")

    def product(self, x: Array) -> Array:
        product: Array = self.matrix.product(x) + self.bias
        return product


@dataclass(frozen=True, slots=True, eq=False)
class StoredMatrix:
    """A matrix of the checkpoint. Of a large one only a part is widened at a time."""

    weights: Weights
    name: str
    dtype: DType

    @property
    def num_rows(self) -> int:
        return self.weights.shape(self.name)[0]

    def rows_at(self, ids: NDArray[np.int64]) -> Array:
        distinct, places = np.unique(ids, return_inverse=True)
        return np.stack([self.weights.rows(self.name, self.dtype, i, i + 1)[0] for i in distinct])[places]

    def product(self, x: Array) -> Array:
        out_features, in_features = self.weights.shape(self.name)
        if out_features * in_features <= _MAX_PART:
            return x @ self.weights.array(self.name, self.dtype).T
        step = max(1, _MAX_PART // in_features)
        parts = [
            x @ self.weights.rows(self.name, self.dtype, start, min(start + step, out_features)).T
            for start in range(0, out_features, step)
        ]
        return np.concatenate(parts, axis=1)
