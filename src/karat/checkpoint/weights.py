"""A tensor as it is stored, and what a layer says it needs."""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from karat.quant import FORMATS

# Plain types; any other type of a weight is the name of a block format (karat.quant).
ITEM_BYTES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """One stored tensor.

    `dtype` is a key of ITEM_BYTES or of karat.quant.FORMATS. `data` is a read-only flat uint8 array, mostly a view of
    the memory-mapped file, which is then not read before use. It holds the elements in C order, little-endian, or the
    blocks of one row after the other (the last axis divides into blocks), and need not be aligned.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    file: Path

    @property
    def num_bytes(self) -> int:
        """Bytes as stored."""
        return self.data.nbytes

    @property
    def is_quantised(self) -> bool:
        """Whether the data are blocks."""
        return self.dtype in FORMATS

    def release(self) -> None:
        """Give the memory of mapped pages back to the system; they are read again if they are needed again."""
        base: object = self.data
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") and self.data.nbytes:
            whole = np.frombuffer(base, np.uint8)
            start = self.data.ctypes.data - whole.ctypes.data
            page = start - start % mmap.PAGESIZE
            base.madvise(mmap.MADV_DONTNEED, page, start + self.data.nbytes - page)

    def to_array(self, dtype: np.dtype[np.floating]) -> NDArray[np.floating]:
        """A new array [*shape] of `dtype` (float32 or float64) of the stored values, exactly.

        The values of a block format are those of its `dequantize`, which computes in float32.
        """
        if (format_ := FORMATS.get(self.dtype)) is not None:
            values = np.empty(self.shape, dtype)
            format_.dequantize(self.data.reshape(-1, format_.block_bytes), out=values.reshape(-1, format_.block_size))
            return values
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
