"""Q5_K: 256 values in 176 bytes, 5 bits each, in 8 groups of 32. A value is scale * integer - minimum.

byte 0            16                          48                                       176
     | factors,   | fifth bits                | the four low bits: 4 runs of 32 bytes  |
     | scales,    | value i: bit i // 32 of   | as in Q4_K                             |
     | minimums   | byte i % 32               |                                        |
       as in Q4_K
"""

import numpy as np

from karat.quant.bits import fields, nibbles
from karat.quant.format import Blocks, Coding, Format, Parts, Values
from karat.quant.k_scales import pack_groups, unpack_scales


def codes(blocks: Blocks) -> Parts:
    scales, minimums = unpack_scales(blocks)
    high = fields(blocks[:, 16:48], 32, range(8), 1).reshape(-1, 256) << np.uint8(4)
    return (nibbles(blocks[:, 48:], 32) | high).view(np.int8), scales, -minimums


def pack(values: Values) -> Blocks:
    head, integers = pack_groups(values, 31, -0.5, 0.1, 15)
    high = np.packbits((integers >> 4).reshape(-1, 8, 32).swapaxes(1, 2), axis=2, bitorder="little").reshape(-1, 32)
    pairs = (integers & np.uint8(15)).reshape(-1, 4, 2, 32)
    return np.concatenate([head, high, (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)], axis=1)


CODING = Coding(codes, sub_block=32, lowest=0, highest=31, subtract=True)
FORMAT = Format("Q5_K", ggml_type=13, block_size=256, block_bytes=176, unpack=CODING.values, pack=pack, coding=CODING)
