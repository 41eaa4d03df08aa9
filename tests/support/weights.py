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
        data = format_.quantize(values.reshape(-1, format_.block_size))
    elif stored == "BF16":
        data = (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    else:
        data = values.astype(PLAIN[stored]).view(np.uint8)
    return Weight(name, stored, values.shape, np.ascontiguousarray(data).reshape(-1), Path("in-memory"))


def random_blocks(stored: str, rows: int, columns: int, rng: np.random.Generator) -> Weight:
    """Any bytes that are a legal matrix; of block formats all codes and scales, as long as they are finite."""
    if stored not in FORMATS:
        return stored_weight(stored, rows, columns, rng)
    format_ = FORMATS[stored]
    blocks = rng.integers(0, 256, (rows * columns // format_.block_size, format_.block_bytes), np.uint8)
    while (bad := ~np.isfinite(format_.dequantize(blocks)).all(axis=1)).any():
        blocks[bad] = rng.integers(0, 256, (int(bad.sum()), format_.block_bytes), np.uint8)
    return Weight("weight", stored, (rows, columns), blocks.reshape(-1), Path("in-memory"))
