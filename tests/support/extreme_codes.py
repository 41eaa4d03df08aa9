"""Matrices and activations whose integers are at the extremes of their formats and widths."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.weights import Weight
from karat.ops.integers import WIDTHS
from karat.quant import FORMATS

F32 = NDArray[np.float32]

# Bytes of a block at which 16-bit numbers begin: scales, and minimums.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}
# The same of bytes that are exponents of scales.
EXPONENTS = {"MXFP4": (0,)}


def extreme_codes(stored: str, columns: int, rng: np.random.Generator) -> Weight:
    """[20, columns]: rows of one byte, among them those of the lowest and the highest code; then bytes of both."""
    format_ = FORMATS[stored]
    rows, blocks = 20, columns // format_.block_size
    data = np.empty((rows, blocks, format_.block_bytes), np.uint8)
    data[:4] = np.array([0x00, 0xFF, 0x80, 0x7F], np.uint8)[:, None, None]
    data[4:12] = rng.choice(np.array([0x00, 0xFF], np.uint8), (8, blocks, format_.block_bytes))
    data[12:] = rng.choice(np.array([0x80, 0x7F], np.uint8), (8, blocks, format_.block_bytes))
    if stored in EXPONENTS:  # 0x77 has the highest code twice, 0xFF the lowest
        data[data == 0x7F] = 0x77
        data[4:12][data[4:12] == 0x00] = 0x77
    for start in HALVES[stored]:
        data[:, :, start : start + 2] = np.array([1.0], "<f2").view(np.uint8)
    for start in EXPONENTS.get(stored, ()):
        data[:, :, start] = 128
    return Weight("weight", stored, (rows, columns), data.reshape(-1), Path("in-memory"))


def digits_of_all_kinds(width: str, columns: int, rng: np.random.Generator) -> F32:
    """Rows of integers of `width` whose digits, signed bytes, are at their extremes in all combinations.

    In each block of 32 columns one is the width's limit, so that a step of the block is 1.
    """
    limit = WIDTHS[width].limit
    digits = [-128, -127, -1, 0, 1, 126, 127]
    values = {0}
    for _ in range({"int8": 1, "int16": 2, "int24": 3}[width]):
        values = {256 * value + digit for value in values for digit in digits}
    inside = np.array(sorted(value for value in values if abs(value) <= limit), np.float32)
    rows = [np.full(columns, value, np.float32) for value in rng.permutation(inside)[:40]]
    rows += [np.full(columns, limit, np.float32), np.full(columns, -limit, np.float32)]
    rows += list(rng.choice(np.array([limit, -limit], np.float32), (4, columns)))
    rows += list(rng.choice(inside, (20, columns)))
    x = np.stack(rows)
    x[:-24, 7::32] = np.where(x[:-24, 7::32] < 0, -limit, limit)
    x[-24:, 7::32] = limit
    return x
