"""NVFP4: 64 values in 36 bytes, in 4 groups of 16. A value is the group's scale * a 4-bit float (E2M1).

    byte 0                 4                                                     36
         | 4 group scales  | 4 groups of 8 bytes: number i (low), i + 8 (high)    |
           unsigned E4M3     E2M1, i = byte 0 … 7 of the group

In ggml a scale of all ones is 0, not NaN, and the highest bit of a scale is ignored.
"""

import numpy as np

from karat.quant.bits import nibbles
from karat.quant.format import Blocks, Format, Values
from karat.quant.mxfp4 import TWICE


def unpack(blocks: Blocks) -> Values:
    scales = blocks[:, :4]
    exponent, mantissa = (scales >> 3 & 15).astype(np.int32), (scales & 7).astype(np.float32)
    is_normal = exponent > 0
    half_scales = np.ldexp(mantissa + np.where(is_normal, np.float32(8), np.float32(0)), np.maximum(exponent, 1) - 11)
    half_scales[scales == 0x7F] = 0
    numbers = TWICE[nibbles(blocks[:, 4:], 8)].reshape(-1, 4, 16)
    values: Values = half_scales[:, :, None] * numbers
    return values.reshape(-1, 64)


FORMAT = Format("NVFP4", ggml_type=40, block_size=64, block_bytes=36, unpack=unpack)
