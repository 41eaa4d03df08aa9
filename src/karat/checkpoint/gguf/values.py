"""The metadata of a GGUF file: typed values. Arrays are decoded on demand."""

from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.wording import kind_of, shown
from karat.errors import CheckpointError

T = TypeVar("T", bool, int, float, str)

STRING, ARRAY = 8, 9
# Number of a type in the file: (GGUF's name, NumPy's name).
NUMBERS: Mapping[int, tuple[str, str]] = {
    0: ("UINT8", "u1"),
    1: ("INT8", "i1"),
    2: ("UINT16", "<u2"),
    3: ("INT16", "<i2"),
    4: ("UINT32", "<u4"),
    5: ("INT32", "<i4"),
    6: ("FLOAT32", "<f4"),
    7: ("BOOL", "u1"),
    10: ("UINT64", "<u8"),
    11: ("INT64", "<i8"),
    12: ("FLOAT64", "<f8"),
}
NAMES: Mapping[int, str] = {number: name for number, (name, _) in NUMBERS.items()} | {STRING: "STRING", ARRAY: "ARRAY"}


NO_TOKEN = 2**32 - 1
"""What writers put where a token's id is not known: -1, as UINT32."""


@dataclass(frozen=True, slots=True, eq=False)
class GgufArray:
    """An array in the metadata, checked but not decoded: `len` items of type `kind`, bytes [begin, end) of the file.

    Of strings, `starts` are the places of their 8-byte lengths, counted from `begin`.
    """

    kind: str
    len: int
    begin: int
    end: int
    _buffer: memoryview
    starts: "array[int]"

    def strings(self) -> list[str]:
        """The items of a STRING array. Raises UnicodeDecodeError (a ValueError) for one that is not UTF-8."""
        return list(self.each_string())

    def each_string(self) -> Iterator[str]:
        """The items of a STRING array one by one, so that memory holds one at a time."""
        assert self.kind == "STRING"
        data = bytes(self._buffer[self.begin : self.end])
        return (data[start + 8 : end].decode() for start, end in pairwise(chain(self.starts, (len(data),))))

    def numbers(self) -> NDArray[Any]:
        """The items of an array of numbers or truth values, as a new array."""
        number = next(number for number, (name, _) in NUMBERS.items() if name == self.kind)
        values = np.frombuffer(self._buffer[self.begin : self.end], NUMBERS[number][1])
        return values.astype(bool) if self.kind == "BOOL" else values.astype(values.dtype.newbyteorder("="))


Value = bool | int | float | str | GgufArray


def shortest(number: float) -> float:
    """The shortest decimal that float32 rounds to `number`: config.json's number where GGUF stores a float32."""
    return float(str(np.float32(number)))


class Metadata:
    """The key-value pairs of a file in their order, with typed getters.

    A FLOAT32 is held as the `shortest` number that rounds to it. Getters raise CheckpointError that begins with
    `place`, the file.
    """

    def __init__(self, place: str, values: Mapping[str, Value], stored: Mapping[str, memoryview]) -> None:
        self.values = values
        self._place = place
        self._stored = stored

    def with_values(self, values: Mapping[str, Value]) -> "Metadata":
        """The same with other values for these keys. What is stored stays."""
        return Metadata(self._place, {**self.values, **values}, self._stored)

    def without(self, keys: Collection[str]) -> "Metadata":
        """The same without these keys."""
        return Metadata(
            self._place, {key: value for key, value in self.values.items() if key not in keys}, self._stored
        )

    def stored(self, key: str) -> bytes:
        """The stored bytes of a value, its type before it, for copying to another file."""
        return bytes(self._stored[key])

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, kind: type[T], key: str, default: T | None = None) -> T:
        """A bool, int, float (an int is converted) or str. If absent: the default, or CheckpointError without one."""
        value = self.optional(kind, key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{self._place}: has no {key} in its metadata; expected one; convert the model again")
        return value

    def optional(self, kind: type[T], key: str) -> T | None:
        """As `get`; None if the key is absent."""
        if key not in self.values:
            return None
        value = self.values[key]
        if kind is float and type(value) is int:
            return kind(value)
        if type(value) is not kind:
            raise self.wrong(key, kind_of(kind))
        return value

    def array(self, key: str, *kinds: str) -> GgufArray | None:
        """The array, whose items must be of one of these kinds; None if the key is absent."""
        value = self.values.get(key)
        if value is not None and (not isinstance(value, GgufArray) or value.kind not in kinds):
            raise self.wrong(key, f"an array of {' or '.join(kinds)}")
        return value

    def wrong(self, key: str, expected: str) -> CheckpointError:
        """The error for a value of a wrong type or an impossible value."""
        value = self.values[key]
        got = f"an array of {value.len} {value.kind}" if isinstance(value, GgufArray) else shown(value)
        return CheckpointError(f"{self._place}: {key} is {got}; expected {expected}; convert the model again")
