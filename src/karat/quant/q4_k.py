"""Q4_K: 256 values in 144 bytes, 4 bits each, in 8 groups of 32. A value is scale * integer - minimum.

    byte 0        2        4                       16                                        144
         | factor | factor | 8 scales, 8 minimums  | 4 runs of 32 bytes: group 2 k (low),    |
         | scales | min.   | 6 bits each           | group 2 k + 1 (high), 4 bits each       |
           f16      f16      karat.quant.k_scales

A group's scale and minimum are its 6 bits times the factor.
"""

import numpy as np

from karat.quant.bits import nibbles
from karat.quant.format import Blocks, Coding, Format, Parts, Values
from karat.quant.k_scales import pack_groups, unpack_scales


def codes(blocks: Blocks) -> Parts:
    scales, minimums = unpack_scales(blocks)
    return nibbles(blocks[:, 16:], 32).view(np.int8), scales, -minimums


def pack(values: Values) -> Blocks:
    head, integers = pack_groups(values, 15, -1.0, 0.1, 20)
    pairs = integers.reshape(-1, 4, 2, 32)
    return np.concatenate([head, (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)], axis=1)


CODING = Coding(codes, sub_block=32, lowest=0, highest=15, subtract=True)
FORMAT = Format("Q4_K", ggml_type=12, block_size=256, block_bytes=144, unpack=CODING.values, pack=pack, coding=CODING)
