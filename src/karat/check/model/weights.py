"""The checkpoint's tensors for the check: widened on demand, with a bounded cache of widened tensors."""

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from karat.check.model.byte_lru import ByteLRU
from karat.check.model.rounding import rounded
from karat.checkpoint.weights import Weight
from karat.config import FloatName

Array = NDArray[np.floating]

_SAME = {"float16": "F16", "bfloat16": "BF16"}
_BUDGET = 1 << 29  # bytes of widened tensors that are kept


class CheckpointWeights:
    """karat.check.model.context.Weights over assigned weights (source name to stored tensor; see models.find_weights).

    `narrow` is what the engine under test computes in: a tensor that is stored wider is rounded to it, as the engine
    has to.
    """

    def __init__(self, stored: Mapping[str, Weight], narrow: FloatName | None = None) -> None:
        self.stored = stored
        self._narrow = narrow if narrow in ("float16", "bfloat16") else None
        self._kept: ByteLRU[tuple[str, str], Array] = ByteLRU(_BUDGET)

    def array(self, name: str, dtype: np.dtype[np.floating]) -> Array:
        """The whole tensor [*shape] in `dtype`; not to be changed."""
        return self._kept.get((name, dtype.str), lambda: self._widened(self.stored[name], dtype))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.stored[name].shape

    def stored_type(self, name: str) -> str:
        """A key of PLAIN_BYTES or of karat.quant.FORMATS."""
        return self.stored[name].dtype

    def rows(self, name: str, dtype: np.dtype[np.floating], start: int, stop: int) -> Array:
        """Rows start … stop - 1 of a tensor."""
        weight = self.stored[name]
        row_bytes = weight.num_bytes // max(1, weight.shape[0])
        part = weight.data[start * row_bytes : stop * row_bytes]
        return self._widened(Weight(name, weight.dtype, (stop - start, *weight.shape[1:]), part, weight.file), dtype)

    def _widened(self, weight: Weight, dtype: np.dtype[np.floating]) -> Array:
        array = weight.to_array(dtype)
        if self._narrow is None or weight.dtype == _SAME[self._narrow]:
            return array
        return rounded(array, self._narrow).astype(dtype, copy=False)


def digest(stored: Mapping[str, Weight]) -> str:
    """SHA-256 over names, types, shapes and bytes of the tensors, in order of names, each tensor once."""
    summed = hashlib.sha256()
    for name, weight in sorted({weight.name: weight for weight in stored.values()}.items()):
        summed.update(f"{name} {weight.dtype} {list(weight.shape)}\n".encode())
        summed.update(weight.data.data)
    return summed.hexdigest()
