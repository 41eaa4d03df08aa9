"""Weight, a tensor as it is stored, and WeightSpec, the tensor that a layer needs."""

import mmap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.wording import listed
from karat.quant import FORMATS

# Plain types; any other type of a weight is the name of a block format (karat.quant).
PLAIN_BYTES: Mapping[str, int] = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# What is no tensor of a model by itself (karat.checkpoint.joins, karat.checkpoint.scaled): bytes, and floats of a byte.
BYTES, NARROW = "U8", "F8_E4M3"


def num_stored_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor as a file stores it."""
    if (format_ := FORMATS.get(dtype)) is not None:
        return format_.num_bytes(prod(shape))
    return prod(shape) if dtype in (BYTES, NARROW) else PLAIN_BYTES[dtype] * prod(shape)


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """One stored tensor.

    `dtype` is a key of PLAIN_BYTES or of karat.quant.FORMATS. `stored` is a read-only flat uint8 array, usually a view
    of the memory-mapped file, whose pages are read on first use. It holds the elements in C order, little-endian, or
    the blocks of one row after the other (the last axis is whole blocks). It need not be aligned.

        stored   | row 0: row_bytes               | row 1          | …
                 |    | row_span |                |    |           |

    With `row_order`, row i of the tensor is stored row row_order()[i]. With `row_span`, the tensor has only bytes
    [start, stop) of each stored row. `whole_shape` is the stored tensor's shape where this is a part of one
    (karat.checkpoint.slices).

    With `made`, the file stores the tensor in another way: `stored` is what it is made of, and made() are the bytes
    that `stored` has otherwise. `settled` is the weight that has them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: NDArray[np.uint8]
    file: Path
    row_order: Callable[[], NDArray[np.intp]] | None = None
    whole_shape: tuple[int, ...] | None = None
    row_span: tuple[int, int] | None = None
    made: Callable[[], NDArray[np.uint8]] | None = None

    def settled(self) -> "Weight":
        """The weight itself, or the same with bytes that were made now."""
        return self if self.made is None else replace(self, stored=self.made(), made=None)

    @property
    def num_bytes(self) -> int:
        """Bytes of this tensor in its stored type."""
        return num_stored_bytes(self.dtype, self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes from one stored row to the next."""
        return num_stored_bytes(self.dtype, (self.whole_shape or self.shape)[1:])

    @property
    def is_quantised(self) -> bool:
        """Whether the data are blocks of a quantised format."""
        return self.dtype in FORMATS

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes of the tensor's rows in order, flat uint8: `stored` itself, or a new array on each access."""
        if self.made is not None:
            return self.settled().data
        if self.row_order is None and self.row_span is None:
            return self.stored
        rows = self.stored.reshape(-1, self.row_bytes)
        if self.row_span is not None:
            rows = rows[:, slice(*self.row_span)]
        return (rows if self.row_order is None else rows[self.row_order()]).reshape(-1)

    def rows(self, start: int, stop: int) -> "Weight":
        """Rows start … stop - 1 of a tensor (of a vector: values). Nothing is read."""
        shape, whole_shape = (stop - start, *self.shape[1:]), self.whole_shape or self.shape
        if (row_order := self.row_order) is not None:
            return replace(self, shape=shape, whole_shape=whole_shape, row_order=lambda: row_order()[start:stop])
        if (made := self.made) is not None:
            part = slice(start * self.row_bytes, stop * self.row_bytes)
            return replace(self, shape=shape, whole_shape=whole_shape, made=lambda: made()[part])
        stored = self.stored[start * self.row_bytes : stop * self.row_bytes]
        return replace(self, shape=shape, whole_shape=whole_shape, stored=stored)

    @property
    def is_mapped(self) -> bool:
        """Whether `stored` is a view of a file that is mapped read-only."""
        return mapping_of(self.stored) is not None

    @property
    def has_plain_rows(self) -> bool:
        """Whether its rows lie in `stored` one after the other, as the tensor has them."""
        return self.made is None and self.row_order is None and self.row_span is None

    def release(self) -> None:
        """Return the memory of mapped pages to the system. A later use reads them again."""
        give_back(self.stored)

    def to_array(self, dtype: np.dtype[np.floating]) -> NDArray[np.floating]:
        """The stored values as a new array [*shape] of `dtype` (float32 or float64), exactly.

        A block format's values are those of its `dequantize`. F64 is first rounded to
        float32, so that a model is the same on every executor.
        """
        if (format_ := FORMATS.get(self.dtype)) is not None:
            values = np.empty(self.shape, dtype)
            format_.dequantize(self.data.reshape(-1, format_.block_bytes), out=values.reshape(-1, format_.block_size))
            return values
        with np.errstate(invalid="ignore", over="ignore"):  # signalling NaN; beyond float32
            match self.dtype:
                case "BF16":
                    plain = (self.data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
                case "F64":
                    plain = self.data.view("<f8").astype(np.float32)
                case _:
                    plain = self.data.view("<f4" if self.dtype == "F32" else "<f2")
            return plain.astype(dtype).reshape(self.shape)


def remarks_on(weights: Collection[Weight]) -> list[str]:
    """Warnings for the user: tensors that are not used in their stored type."""
    doubles = [weight.name for weight in weights if weight.dtype == "F64"]
    return [f"{len(doubles)} F64 tensors are rounded to float32: {listed(doubles, 3)}"] if doubles else []


def give_back(stored: NDArray[np.uint8]) -> None:
    """Return the memory of the pages of a mapped file to the system. A later use reads them again."""
    if (found := mapping_of(stored)) is not None and hasattr(mmap, "MADV_DONTNEED") and stored.nbytes:
        base, start = found
        page = start - start % mmap.PAGESIZE
        base.madvise(mmap.MADV_DONTNEED, page, start + stored.nbytes - page)


def mapping_of(stored: NDArray[np.uint8]) -> tuple[mmap.mmap, int] | None:
    """The read-only mapping that an array is a view of, and the array's offset in it in bytes; None if there is none.

    Pages of a writable mapping need not be in a file, so they cannot be returned to the system: None for those too.
    """
    base: object = stored
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap) or not memoryview(base).readonly:
        return None
    return base, stored.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A tensor that a layer needs: `source` is its canonical (Hugging Face) name, `shape` the whole tensor's.

    `shard_axis` is the axis that tensor parallelism cuts: 0 column-parallel, 1 row-parallel, None replicated. `pieces`
    are the parts [start, stop) of that axis that this rank holds, one after the other; None means all of it. Of a
    table that is `gathered`, rows are read by token id and nothing else. `stored` are the shapes that files have it in,
    where those are others.
    """

    source: str
    shape: tuple[int, ...]
    shard_axis: int | None = None
    pieces: tuple[tuple[int, int], ...] | None = None
    gathered: bool = False
    stored: tuple[tuple[int, ...], ...] = ()


class Checkpoint(Protocol):
    """Named weights of one model, opened and checked but not read."""

    @property
    def path(self) -> Path:
        """The folder or file as given, for messages."""

    @property
    def weights(self) -> Mapping[str, Weight]:
        """By Hugging Face name."""
