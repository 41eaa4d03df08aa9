"""DeviceLogits: logits of a step that stay in the memory of a device until somebody reads them."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray


class DeviceLogits(NDArrayOperatorsMixin):
    """Logits [rows, vocab], or a row [vocab], as an array that is read when more is asked for than lengths and `top`.

    `read` gives the array. `tops` [rows] has of each row the first index of its largest logit, or -1 if not all logits
    are finite.
    """

    def __init__(self, read: Callable[[], NDArray[Any]], tops: NDArray[np.int64], shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._read, self._tops = read, tops

    @property
    def top(self) -> int | None:
        """Of a row: the first index of the largest logit; None if not all are finite."""
        found = int(self._tops[0])
        return None if found < 0 else found

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
            return DeviceLogits(lambda: self._array[row], self._tops[row : row + 1], self.shape[1:])
        if isinstance(key, slice):
            tops = self._tops[key]
            return DeviceLogits(lambda: self._array[key], tops, (len(tops), *self.shape[1:]))
        return self._array[key]

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
