"""E4M3: 128 values in 132 bytes. A value is scale * an 8-bit float. Folders with FP8 are read as such blocks.

    byte 0       4                                      132
         | scale | 128 bytes: number i, i = byte 0 … 127 |
           f32     sign, 4 bits of exponent, 3 of mantissa

The numbers are those of the OCP's E4M3, except for all ones below the sign, which is NaN there and 480 here: whoever
makes blocks gives one with a NaN the scale NaN, so that a row of its weights gives NaN in either case. ggml has no such
type. Products of a scale and a number are exact in float64.
"""

import numpy as np
from numpy.typing import NDArray

from karat.quant.format import Blocks, Format

NUMBERS = np.ldexp(
    np.concatenate([np.arange(8), *(np.arange(8, 16) * 2.0**exponent for exponent in range(15))]), -9
).astype(np.float32)
NUMBERS = np.concatenate([NUMBERS, -NUMBERS])
NUMBERS.flags.writeable = False


def unpack(blocks: Blocks) -> NDArray[np.floating]:
    scales = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    values: NDArray[np.floating] = scales.astype(np.float64) * NUMBERS[blocks[:, 4:]]
    return values


FORMAT = Format("E4M3", ggml_type=None, block_size=128, block_bytes=132, unpack=unpack)
