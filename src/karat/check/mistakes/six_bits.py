"""Scales of six bits. Every format stores them in pieces: where the pieces lie, and how to take and put the scales."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.uint8]


def _of_k() -> list[tuple[int, int]]:
    """Q4_K and Q5_K: eight scales, then eight minima, in bytes 4 to 15."""
    whole = [[(8 * (first + i), 8 * (first + i) + 4) for i in range(4)] for first in (4, 8)]
    split = [[(8 * (12 + i) + 4 * part, 8 * (4 + 4 * part + i) + 6) for i in range(4)] for part in (0, 1)]
    return [*whole[0], *split[0], *whole[1], *split[1]]


# Of each scale the lowest of its four low bits and the lower of its two high ones, as numbers of bits of a block.
PLACES: Mapping[str, Sequence[tuple[int, int]]] = {
    "Q4_K": _of_k(),
    "Q5_K": _of_k(),
    "Q3_K": [(8 * (96 + i % 8) + 4 * (i // 8), 8 * (104 + i % 4) + 2 * (i // 4)) for i in range(16)],
    "IQ4_XS": [(32 + 4 * i, 16 + 2 * i) for i in range(8)],
}


def taken(stored: str, blocks: Blocks) -> NDArray[np.uint8]:
    """Blocks [n, block_bytes] to the scales [n, number of scales], minima behind them where the format has any."""
    bits = np.unpackbits(blocks, axis=1, bitorder="little")
    found = bits[:, _numbers(stored)].reshape(len(blocks), -1, 6)
    scales: NDArray[np.uint8] = (found << np.arange(6, dtype=np.uint8)).sum(axis=2, dtype=np.uint8)
    return scales


def put(stored: str, blocks: Blocks, scales: NDArray[np.uint8]) -> Blocks:
    """The blocks with other scales."""
    bits = np.unpackbits(blocks, axis=1, bitorder="little")
    single = scales[:, :, None] >> np.arange(6, dtype=np.uint8) & np.uint8(1)
    bits[:, _numbers(stored)] = single.reshape(len(blocks), -1)
    return np.packbits(bits, axis=1, bitorder="little")


def _numbers(stored: str) -> NDArray[np.intp]:
    """The bits of all scales, the lowest of each first."""
    places = [[*range(low, low + 4), high, high + 1] for low, high in PLACES[stored]]
    return np.array(places, np.intp).reshape(-1)
