"""Weights as a faulty loader or a faulty shard has them. Each is one function of the right tensors."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.quantised import misread
from karat.check.model.context import Array, DType, Matrix, StoredMatrix, Weights
from karat.check.model.rounding import rounded
from karat.errors import UsageError


@dataclass(frozen=True, slots=True)
class Effective:
    """A wrong weight [out, in] or bias. Hashable.

    kind   the way in which it is made; raises UsageError for one that does not exist
    names  the tensors that it is made of
    args   what else the way needs
    """

    kind: str
    names: tuple[str, ...]
    args: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise UsageError(f"no wrong weight of the kind {self.kind!r} (there are: {', '.join(_KINDS)})")

    def __call__(self, weights: Weights, dtype: DType) -> Array:
        with np.errstate(all="ignore"):
            return _KINDS[self.kind](self, weights, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A matrix [out, in] that is not the checkpoint's."""

    array: Array

    @classmethod
    def of(cls, reading: Effective, right: Matrix) -> "Made":
        """What a wrong reading gives in place of a matrix of the checkpoint."""
        assert isinstance(right, StoredMatrix)
        return cls(reading(right.weights, right.dtype))

    @property
    def num_rows(self) -> int:
        return len(self.array)

    def rows_at(self, ids: NDArray[np.int64]) -> Array:
        return self.array[ids]

    def product(self, x: Array) -> Array:
        return x @ self.array.T


def _transposed(e: Effective, weights: Weights, dtype: DType) -> Array:
    """Read in another order than it is stored in: "as columns" a row-major tensor, "as rows" a transposed one.

    More arguments: an axis and a number of ranks, each of which reads its own part of that axis so.
    """
    w = weights.array(e.names[0], dtype)
    how, axis, n = (*e.args, 0, 1)[:3] if len(e.args) == 1 else e.args
    parts = [
        p.reshape(p.shape[1], p.shape[0]).T if how == "as columns" else p.T.reshape(p.shape) for p in _cut(w, n, axis)
    ]
    return np.concatenate(parts, axis=axis)


def _cut(w: Array, n: int, axis: int) -> list[Array]:
    """The parts of n ranks; where they do not divide, all but the last are as large."""
    each = -(-w.shape[axis] // n)
    return np.split(w, range(each, w.shape[axis], each), axis=axis)


def _slices(e: Effective, weights: Weights, dtype: DType) -> Array:
    """Each rank has the part of another one: rank r of len(order) that of rank order[r], along the axis."""
    axis, order = e.args
    parts = _cut(weights.array(e.names[0], dtype), len(order), axis)
    return np.concatenate([parts[i] for i in order], axis=axis)


def _naive(e: Effective, weights: Weights, dtype: DType) -> Array:
    """Part `index` of tensors that were stacked, cut into n equal pieces, and each piece into a rank's parts."""
    n, index = e.args
    stacked = [weights.array(name, dtype) for name in e.names]
    ends = np.cumsum([len(part) // n for part in stacked])[:-1]
    pieces = np.split(np.concatenate(stacked), n)
    return np.concatenate([np.split(piece, ends)[index] for piece in pieces])


def _column_shards(e: Effective, weights: Weights, dtype: DType) -> Array:
    """Each of n ranks took columns of [out, in] where it should have taken rows, and read them as [out / n, in]."""
    w, (n,) = weights.array(e.names[0], dtype), e.args
    out_features, in_features = w.shape
    return np.concatenate([part.reshape(out_features // n, in_features) for part in np.split(w, n, axis=1)])


def _row_shards(e: Effective, weights: Weights, dtype: DType) -> Array:
    """Each of n ranks took rows of [out, in] where it should have taken columns, and read them as [out, in / n]."""
    w, (n,) = weights.array(e.names[0], dtype), e.args
    out_features, in_features = w.shape
    return np.concatenate([part.reshape(out_features, in_features // n) for part in np.split(w, n)], axis=1)


def _fused(e: Effective, weights: Weights, dtype: DType) -> Array:
    """Part `index` of q, k, v stacked in the order `stored`, and cut in the order `cut` ("groups": head by head).

    One more argument: the number of ranks, each of which stacks and cuts its own heads so.
    """
    stored, cut, index, head_dim, n = e.args if len(e.args) == 5 else (*e.args, 1)
    whole = [_cut(weights.array(name, dtype), n, 0) for name in e.names]
    return np.concatenate(
        [_fused_of([part[rank] for part in whole], stored, cut, index, head_dim) for rank in range(n)]
    )


def _fused_of(parts: list[Array], stored: Any, cut: Any, index: int, head_dim: int) -> Array:
    sizes = [len(part) for part in parts]
    kv_heads = sizes[1] // head_dim
    if stored == "groups":
        grouped = [part.reshape(kv_heads, -1, *part.shape[1:]) for part in parts]
        whole = np.concatenate(grouped, axis=1).reshape(-1, *parts[0].shape[1:])
    else:
        whole = np.concatenate([parts[i] for i in stored])
    if cut == "groups":
        group = sizes[0] // kv_heads // head_dim
        per_kv = whole.reshape(kv_heads, group + 2, head_dim, *whole.shape[1:])
        taken = (per_kv[:, :group], per_kv[:, group], per_kv[:, group + 1])[index]
        return taken.reshape(-1, *whole.shape[1:])
    offset = 0
    for i in cut:
        if i == index:
            return whole[offset : offset + sizes[i]]
        offset += sizes[i]
    raise AssertionError(cut)


def _permuted(e: Effective, weights: Weights, dtype: DType) -> Array:
    """Rows of each head as Llama's original files (and its GGUF) have them: pairs side by side; or the way back."""
    w = weights.array(e.names[0], dtype)
    head_dim, direction = e.args
    split = (2, head_dim // 2) if direction == "to-pairs" else (head_dim // 2, 2)
    return w.reshape(-1, *split, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def _turns(e: Effective, weights: Weights, dtype: DType) -> Array:
    """Part `index` of two tensors that each of n ranks has stacked, and whose rows are read in turns ("cut"); or whose
    rows are "stacked" in turns, and read as halves."""
    how, index, n = e.args
    parts = []
    for pair in zip(*(_cut(weights.array(name, dtype), n, 0) for name in e.names), strict=True):
        if how == "cut":
            parts.append(np.concatenate(pair)[index::2])
        else:
            parts.append(np.stack(pair, axis=1).reshape(-1, *pair[0].shape[1:])[index * len(pair[0]) :][: len(pair[0])])
    return np.concatenate(parts)


def _regrouped(e: Effective, weights: Weights, dtype: DType) -> Array:
    """Rows [heads, head_dim] taken as [head_dim, heads], by each of n ranks of its own."""
    head_dim, n = e.args
    parts = _cut(weights.array(e.names[0], dtype), n, 0)
    return np.concatenate([p.reshape(head_dim, -1, *p.shape[1:]).swapaxes(0, 1).reshape(p.shape) for p in parts])


def _bits(e: Effective, weights: Weights, dtype: DType) -> Array:
    """The stored bytes, read wrongly."""
    (how,) = e.args
    stored = weights.stored[e.names[0]]  # type: ignore[attr-defined]
    if stored.is_quantised:
        return misread(stored, how).astype(dtype)
    data = stored.data
    match how:
        case "truncated":
            bits = stored.to_array(np.dtype(np.float32)).view(np.uint32) & np.uint32(0xFFFF0000)
            out = bits.view(np.float32)
        case "rounded bfloat16" | "rounded float16":
            out = rounded(stored.to_array(np.dtype(np.float32)), how.split()[1])
        case "misread" if stored.dtype == "F16":
            out = (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "misread":
            out = data.view("<f2")
        case "swapped" if stored.dtype == "BF16":
            out = (data.view(">u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "swapped":
            out = data.view(">f4" if stored.dtype == "F32" else ">f2")
        case _:
            raise AssertionError(how)
    return out.astype(dtype).reshape(stored.shape)


def _zero(e: Effective, weights: Weights, dtype: DType) -> Array:
    return np.zeros(weights.shape(e.names[0]), dtype)


_KINDS: Mapping[str, Callable[[Effective, Weights, DType], Array]] = {
    "transposed": _transposed,
    "column-shards": _column_shards,
    "row-shards": _row_shards,
    "fused": _fused,
    "naive": _naive,
    "slices": _slices,
    "permuted": _permuted,
    "turns": _turns,
    "regrouped": _regrouped,
    "bits": _bits,
    "zero": _zero,
}
