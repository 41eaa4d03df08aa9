"""IQ4_NL: 32 values in 18 bytes. A value is scale * one of 16 uneven levels.

byte 0       2                                                 18
     | scale | 16 bytes: level numbers i (low), i + 16 (high)   |
       f16     4 bits each, i = byte 0 … 15, as in Q4_0
"""

import numpy as np

from karat.quant.bits import nibbles
from karat.quant.format import Blocks, Coding, Format, Parts, Values, half, half_bytes, inverted
from karat.quant.k_native import fit_levels, nearest_levels

LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
LEVELS.flags.writeable = False
INTEGER_LEVELS = LEVELS.astype(np.int8)
INTEGER_LEVELS.flags.writeable = False
NUM_STEPS = 7  # of the search


def codes(blocks: Blocks) -> Parts:
    return INTEGER_LEVELS[nibbles(blocks[:, 2:], 16)], half(blocks, 0), None


def pack(values: Values) -> Blocks:
    scales = fit_levels(values, LEVELS, NUM_STEPS)
    return np.concatenate([half_bytes(scales), pack_levels(values, inverted(scales))], axis=1)


def pack_levels(groups: Values, inverses: Values) -> Blocks:
    """The nearest levels of groups [n, 32], each times its inverse [n, 1], in bytes [n, 16]."""
    chosen = nearest_levels(groups, LEVELS, inverses).view(np.uint8)
    return chosen[:, :16] | chosen[:, 16:] << np.uint8(4)


CODING = Coding(codes, sub_block=32, lowest=-127, highest=113)
FORMAT = Format("IQ4_NL", ggml_type=20, block_size=32, block_bytes=18, unpack=CODING.values, pack=pack, coding=CODING)
