"""MXFP4: 32 values in 17 bytes. A value is 2**(exponent - 127) * a 4-bit float (E2M1): scale * code, of integers.

    byte 0          1                                            17
         | exponent | 16 bytes: number i (low), i + 16 (high)     |
           uint8      E2M1, i = byte 0 … 15, as in Q4_0

The OCP Microscaling formats 1.0, except for exponent 255, which is NaN there and 2**128 in ggml.
"""

import numpy as np

from karat.quant.bits import nibbles
from karat.quant.format import Blocks, Coding, Format, Parts, Values

# Twice the E2M1 numbers, which are then integers: codes. Scales are halves.
TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
TWICE.flags.writeable = False
_MIDDLES = np.array([0.5, 1.5, 2.5, 3.5, 5, 7, 10], np.float32)  # between codes from 0 on


def codes(blocks: Blocks) -> Parts:
    half_scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return TWICE[nibbles(blocks[:, 1:], 16)], half_scale, None


def pack(values: Values) -> Blocks:
    """The scale puts the largest value between 8 and 16, so it becomes 8 or 12. Of two codes as near, the smaller."""
    largest = np.abs(values).max(axis=1, keepdims=True)
    exponents = np.where(largest > 0, np.maximum(np.floor(np.log2(largest)) - 2 + 127, 0), 0).astype(np.int32)
    chosen = np.searchsorted(_MIDDLES, np.ldexp(np.abs(values), 128 - exponents)).astype(np.uint8)
    chosen |= np.where((values < 0) & (chosen > 0), np.uint8(8), np.uint8(0))
    return np.concatenate([exponents.astype(np.uint8), chosen[:, :16] | chosen[:, 16:] << np.uint8(4)], axis=1)


CODING = Coding(codes, sub_block=32, lowest=-12, highest=12)
FORMAT = Format("MXFP4", ggml_type=39, block_size=32, block_bytes=17, unpack=CODING.values, pack=pack, coding=CODING)
