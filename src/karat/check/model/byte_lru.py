"""An LRU cache of results, bounded in bytes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class HasBytes(Protocol):
    """A value that knows its size."""

    @property
    def nbytes(self) -> int: ...


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=HasBytes)


class ByteLRU(Generic[Key, Value]):
    """At most `budget` bytes of values, and always the value that was asked for last."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._num_bytes = 0

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key. `make` makes it where the cache does not have it."""
        if (known := self._values.get(key)) is not None:
            self._values.move_to_end(key)
            return known
        value = make()
        self._values[key] = value
        self._num_bytes += value.nbytes
        while self._num_bytes > self._budget and len(self._values) > 1:
            _, dropped = self._values.popitem(last=False)
            self._num_bytes -= dropped.nbytes
        return value
