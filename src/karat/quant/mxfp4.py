"""MXFP4: 32 values in 17 bytes. A value is 2**(exponent - 127) * a 4-bit float (E2M1).

    byte 0          1                                            17
         | exponent | 16 bytes: number i (low), i + 16 (high)     |
           uint8      E2M1, i = byte 0 … 15, as in Q4_0

The OCP Microscaling formats 1.0, except for exponent 255, which is NaN there and 2**128 in ggml.
"""

import numpy as np

from karat.quant.bits import nibbles
from karat.quant.format import Blocks, Format, Values

# Twice the E2M1 numbers, which are then integers; `unpack` halves the scale.
TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
TWICE.flags.writeable = False


def unpack(blocks: Blocks) -> Values:
    half_scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return half_scale * TWICE[nibbles(blocks[:, 1:], 16)]


FORMAT = Format("MXFP4", ggml_type=39, block_size=32, block_bytes=17, unpack=unpack)
