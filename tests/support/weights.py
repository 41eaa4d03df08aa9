"""Matrices in every stored type, for tests of executors."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.weights import Weight
from karat.quant import FORMATS

PLAIN = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def stored_weight(stored: str, rows: int, columns: int, rng: np.random.Generator) -> Weight:
    return weight_of(rng.standard_normal((rows, columns)).astype(np.float32), stored)


def weight_of(values: NDArray[np.float32], stored: str, name: str = "weight") -> Weight:
    """These values [rows, columns] (or a vector) as a weight of this stored type."""
    if stored in FORMATS:
        format_ = FORMATS[stored]
        blocks = values.reshape(-1, format_.block_size)
        own = {"MXFP4": mxfp4_of, "E4M3": e4m3_of}.get(stored, format_.quantize)  # Karat only reads E4M3
        data = own(blocks)
    elif stored == "BF16":
        data = (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    else:
        data = values.astype(PLAIN[stored]).view(np.uint8)
    return Weight(name, stored, values.shape, np.ascontiguousarray(data).reshape(-1), Path("in-memory"))


def mxfp4_of(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Blocks of values [n, 32], whose largest becomes 4 or 6 times a power of two. Karat itself only reads MXFP4."""
    largest = np.maximum(np.abs(values).max(axis=1, keepdims=True), np.float32(2.0**-100))
    exponents = np.frexp(largest)[1] - 3
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    chosen = np.abs(np.abs(np.ldexp(values, -exponents))[..., None] - levels).argmin(axis=-1).astype(np.uint8)
    codes = chosen | np.signbit(values).astype(np.uint8) << 3
    return np.concatenate([(exponents + 127).astype(np.uint8), codes[:, :16] | codes[:, 16:] << 4], axis=1)


def e4m3_of(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Blocks of values [n, 128], whose largest becomes 448."""
    scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), np.float32(2.0**-100)) / np.float32(448)
    return np.concatenate([scale.astype("<f4").view(np.uint8), e4m3_numbers(values / scale)], axis=1)


def e4m3_numbers(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The nearest of E4M3's numbers, of two as near the smaller one; those beyond 448 as 448."""
    levels = np.array([m * 2.0**-9 if e == 0 else (8 + m) * 2.0 ** (e - 10) for e in range(16) for m in range(8)][:-1])
    found = np.searchsorted((levels[1:] + levels[:-1]) / 2, np.abs(values)).astype(np.uint8)
    return found | np.signbit(values).astype(np.uint8) << 7


def random_blocks(stored: str, rows: int, columns: int, rng: np.random.Generator) -> Weight:
    """Any bytes that are a legal matrix; of block formats all codes and scales, as long as they are finite.

    Scales of MXFP4 and E4M3 are such as the others' are, so that products with powers are normal numbers.
    """
    if stored not in FORMATS:
        return stored_weight(stored, rows, columns, rng)
    format_ = FORMATS[stored]
    blocks = rng.integers(0, 256, (rows * columns // format_.block_size, format_.block_bytes), np.uint8)
    while (bad := ~np.isfinite(format_.dequantize(blocks)).all(axis=1)).any():
        blocks[bad] = rng.integers(0, 256, (int(bad.sum()), format_.block_bytes), np.uint8)
    if stored == "MXFP4":
        blocks[:, 0] = 104 + blocks[:, 0] % 48
    if stored == "E4M3":
        scales = rng.choice([-1, 1], len(blocks)) * 2.0 ** rng.uniform(-20, 3, len(blocks))
        blocks[:, :4] = scales.astype("<f4")[:, None].view(np.uint8)
    return Weight("weight", stored, (rows, columns), blocks.reshape(-1), Path("in-memory"))
