"""DeviceLogits: logits of a step that stay in the memory of a device until somebody reads them."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

Largest = Callable[[int], NDArray[np.int32]]

MOST_LARGEST = 1024  # kMostLargest in csrc/gpu/shapes.h


class DeviceLogits(NDArrayOperatorsMixin):
    """Logits [rows, vocab], or a row [vocab], as an array that is read when more is asked for than lengths, `top` and
    `largest`.

    `read` gives the array. `tops` [rows] has of each row the first index of its largest logit, or -1 if not all logits
    are finite. `find(num)` gives [rows, num, 2] pairs of an index and the bits of its logit: those of the largest ones,
    from the largest on, of equal ones the first first; num is a power of two up to MOST_LARGEST.
    """

    def __init__(
        self, read: Callable[[], NDArray[Any]], tops: NDArray[np.int64], find: Largest, shape: tuple[int, ...]
    ) -> None:
        self.shape = shape
        self._read, self._tops, self._find = read, tops, find

    @property
    def top(self) -> int | None:
        """Of a row: the first index of the largest logit; None if not all are finite."""
        found = int(self._tops[0])
        return None if found < 0 else found

    def largest(self, num: int) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Of a row whose logits are finite: the indices of the `num` largest, ascending, and these logits. Of equal
        ones the first count. None if a device does not look for so many.
        """
        if num > MOST_LARGEST:
            return None
        pairs = self._find(1 << (num - 1).bit_length())[0, :num]
        pairs = pairs[np.argsort(pairs[:, 0])]
        return pairs[:, 0].astype(np.int64), pairs[:, 1].view(np.float32)

    @cached_property
    def _array(self) -> NDArray[Any]:
        return self._read()

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        if len(self.shape) == 1:
            return self._array[key]
        if isinstance(key, int):
            row = range(len(self))[key]
            return self._part(key=row, rows=slice(row, row + 1), shape=self.shape[1:])
        if isinstance(key, slice):
            return self._part(key=key, rows=key, shape=(len(self._tops[key]), *self.shape[1:]))
        return self._array[key]

    def _part(self, *, key: int | slice, rows: slice, shape: tuple[int, ...]) -> "DeviceLogits":
        return DeviceLogits(lambda: self._array[key], self._tops[rows], lambda num: self._find(num)[rows], shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._array, dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = (each._array if isinstance(each, DeviceLogits) else each for each in inputs)
        return getattr(ufunc, method)(*plain, **options)

    def __getattr__(self, name: str) -> Any:
        """Whatever else arrays have."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._array, name)
