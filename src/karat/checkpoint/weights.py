"""A tensor as it is stored, and what a layer says it needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

StoredType = Literal["F32", "F16", "BF16"]

ITEM_BYTES: Mapping[StoredType, int] = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """One stored tensor.

    `data` is a read-only flat uint8 view of the memory-mapped file; nothing is read before use. It holds the
    elements in C order, little-endian, and need not be aligned to their size.
    """

    name: str
    dtype: StoredType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    file: Path

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes

    def to_array(self, dtype: np.dtype[np.floating]) -> NDArray[np.floating]:
        """A new array [*shape] of `dtype` (float32 or float64); exact, as every stored type is a subset."""
        if self.dtype == "BF16":
            stored = (self.data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        else:
            stored = self.data.view("<f4" if self.dtype == "F32" else "<f2")
        with np.errstate(invalid="ignore"):  # signalling NaN
            return stored.astype(dtype).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """What a layer needs: `source` is the canonical (Hugging Face) name, `shape` the whole tensor's.

    `shard_axis` is the axis that tensor parallelism cuts: 0 column-parallel, 1 row-parallel, None replicated.
    """

    source: str
    shape: tuple[int, ...]
    shard_axis: int | None = None


class Checkpoint(Protocol):
    """Named weights of one model, opened and validated but not read."""

    @property
    def path(self) -> Path: ...

    @property
    def weights(self) -> Mapping[str, Weight]: ...
