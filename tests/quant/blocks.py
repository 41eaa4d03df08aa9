"""Blocks to try formats on: random bytes, and random bytes with every kind of scale planted in them."""

import numpy as np
from numpy.typing import NDArray

from karat.quant import Format

# float16: zeros, the smallest, subnormal, one, the largest, infinities, quiet and signalling NaN with payloads.
HALVES = np.array(
    [
        0,
        0x8000,
        1,
        0x8001,
        0x03FF,
        0x83FF,
        0x0400,
        0x3C00,
        0xBC00,
        0x7BFF,
        0xFBFF,
        0x7C00,
        0xFC00,
        0x7E00,
        0xFE00,
        0x7D01,
        0xFD01,
        0x7FFF,
        0xFFFF,
    ],
    "<u2",
)


def random_blocks(format_: Format, seed: int, num_random: int = 2048) -> NDArray[np.uint8]:
    """Random bytes [n, block_bytes]; in a part of them, each extreme half at each even place, alone and everywhere."""
    rng = np.random.default_rng(seed)
    bytes_ = [rng.integers(0, 256, (num_random, format_.block_bytes), np.uint8)]
    for number in HALVES:
        halves = np.array([number]).view(np.uint8)
        places = np.arange(0, format_.block_bytes - 1, 2)
        planted = rng.integers(0, 256, (len(places), format_.block_bytes), np.uint8)
        for row, place in zip(planted, places, strict=True):
            row[place : place + 2] = halves
        filled = np.resize(halves, (1, format_.block_bytes)).astype(np.uint8)
        bytes_ += [planted, filled]
    return np.concatenate(bytes_)
