"""MXFP4: 32 values in 17 bytes. A value is 2**(exponent - 127) * a 4-bit float (E2M1): scale * code, of integers.

    byte 0          1                                            17
         | exponent | 16 bytes: number i (low), i + 16 (high)     |
           uint8      E2M1, i = byte 0 … 15, as in Q4_0

The OCP Microscaling formats 1.0, except for exponent 255, which is NaN there and 2**128 in ggml.
"""

import numpy as np

from karat.quant.bits import nibbles
from karat.quant.format import Blocks, Coding, Format, Parts

# Twice the E2M1 numbers, which are then integers: codes. Scales are halves.
TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
TWICE.flags.writeable = False


def codes(blocks: Blocks) -> Parts:
    half_scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return TWICE[nibbles(blocks[:, 1:], 16)], half_scale, None


CODING = Coding(codes, sub_block=32, lowest=-12, highest=12)
FORMAT = Format("MXFP4", ggml_type=39, block_size=32, block_bytes=17, unpack=CODING.values, coding=CODING)
