"""Small integers in bytes, unpacked for many blocks at once."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def fields(packed: NDArray[np.uint8], width: int, shifts: Sequence[int], bits: int) -> NDArray[np.uint8]:
    """Fields of `bits` bits at `shifts` of each byte, [n, bytes] to [n, bytes // width, len(shifts), width].

    A run of `width` bytes gives `width` values from the first field, then `width` from the second, and so on.
    """
    runs = np.ascontiguousarray(packed).reshape(len(packed), -1, width)
    return np.stack([runs >> np.uint8(shift) & np.uint8((1 << bits) - 1) for shift in shifts], axis=2)


def packed_pairs(integers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Integers of two bits [n, 256] as bytes [n, 64]; `fields` with a width of 32 and four shifts is the inverse."""
    runs = integers.reshape(-1, 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    packed: NDArray[np.uint8] = np.bitwise_or.reduce(runs, axis=2)
    return packed.reshape(-1, 64)


def nibbles(packed: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """The low halves, then the high halves, of each run of `width` bytes, [n, bytes] to [n, 2 * bytes]."""
    return fields(packed, width, (0, 4), 4).reshape(len(packed), -1)


def single_bits(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """All bits, the lowest of each byte first: [..., bytes] to [..., bytes, 8]."""
    return (packed[..., None] >> np.arange(8, dtype=np.uint8)) & np.uint8(1)


def signs(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """-1 for each set bit and 1 for each other, the lowest of each byte first: [..., bytes] to [..., bytes, 8]."""
    return np.where(single_bits(packed) == 0, np.float32(1), np.float32(-1))


def words(blocks: NDArray[np.uint8], start: int, end: int) -> NDArray[np.uint16]:
    """Bytes start to end of each block as little-endian 16-bit integers [n, (end - start) // 2]."""
    return np.ascontiguousarray(blocks[:, start:end]).view("<u2")
