"""Q4_1: 32 values in 20 bytes. A value is scale * integer + minimum.

byte 0       2         4                                            20
     | scale | minimum | 16 bytes: integer i (low), i + 16 (high)    |
       f16     f16       4 bits each, i = byte 0 … 15
"""

import numpy as np

from karat.quant.bits import nibbles
from karat.quant.format import Blocks, Coding, Format, Parts, Values, half, half_bytes, steps_above_minimum


def codes(blocks: Blocks) -> Parts:
    return nibbles(blocks[:, 4:], 16).view(np.int8), half(blocks, 0), half(blocks, 2)


def pack(values: Values) -> Blocks:
    scale, minimum, integers = steps_above_minimum(values, 15)
    return np.concatenate([half_bytes(scale), half_bytes(minimum), integers[:, :16] | integers[:, 16:] << 4], axis=1)


CODING = Coding(codes, sub_block=32, lowest=0, highest=15)
FORMAT = Format("Q4_1", ggml_type=3, block_size=32, block_bytes=20, unpack=CODING.values, pack=pack, coding=CODING)
