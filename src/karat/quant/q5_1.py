"""Q5_1: 32 values in 24 bytes. A value is scale * integer + minimum, with integers of five bits.

byte 0       2         4                       8                                            24
     | scale | minimum | fifth bits            | 16 bytes: integer i (low), i + 16 (high)    |
       f16     f16       bit i: of integer i     the four low bits, laid out as in Q4_0
"""

import numpy as np

from karat.quant.bits import nibbles
from karat.quant.format import Blocks, Coding, Format, Parts, Values, half, half_bytes, steps_above_minimum
from karat.quant.q5_0 import fifth_bits, low_and_fifth_bits


def codes(blocks: Blocks) -> Parts:
    integers = fifth_bits(blocks[:, 4:8]) | nibbles(blocks[:, 8:], 16)
    return integers.view(np.int8), half(blocks, 0), half(blocks, 2)


def pack(values: Values) -> Blocks:
    scale, minimum, integers = steps_above_minimum(values, 31)
    return np.concatenate([half_bytes(scale), half_bytes(minimum), *low_and_fifth_bits(integers)], axis=1)


CODING = Coding(codes, sub_block=32, lowest=0, highest=31)
FORMAT = Format("Q5_1", ggml_type=7, block_size=32, block_bytes=24, unpack=CODING.values, pack=pack, coding=CODING)
