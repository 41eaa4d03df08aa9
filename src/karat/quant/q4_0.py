"""Q4_0: 32 values in 18 bytes. A value is scale * (integer - 8).

byte 0       2                                            18
     | scale | 16 bytes: integer i (low), i + 16 (high)    |
       f16     4 bits each, i = byte 0 … 15
"""

import numpy as np

from karat.quant.bits import nibbles
from karat.quant.format import Blocks, Coding, Format, Parts, Values, half, half_bytes, steps_around_zero


def codes(blocks: Blocks) -> Parts:
    return nibbles(blocks[:, 2:], 16).astype(np.int8) - np.int8(8), half(blocks, 0), None


def pack(values: Values) -> Blocks:
    scale, integers = steps_around_zero(values, 8)
    return np.concatenate([half_bytes(scale), integers[:, :16] | integers[:, 16:] << 4], axis=1)


CODING = Coding(codes, sub_block=32, lowest=-8, highest=7)
FORMAT = Format("Q4_0", ggml_type=2, block_size=32, block_bytes=18, unpack=CODING.values, pack=pack, coding=CODING)
