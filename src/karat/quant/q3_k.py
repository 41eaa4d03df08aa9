"""Q3_K: 256 values in 110 bytes, 3 bits each, in 16 groups of 16. A value is scale * (integer - 4).

    byte 0                           32              96              108      110
         | high bits                 | low two bits  | 16 scales     | factor |
         | value i: bit i // 32 of   | 64 bytes, as  | 6 bits each,  | f16    |
         | byte i % 32               | in Q2_K       | 32 too large  |        |

A group's scale is its 6 bits minus 32, times the factor. The scales' 12 bytes:

    byte 96                                        104                           108
         | byte 96 + i: low 4 bits of scale i      | byte 104 + j: high 2 bits   |
         | (low half) and of scale i + 8 (high)    | of scales j, j + 4, j + 8,  |
                                                   | j + 12, the lowest first    |
"""

import numpy as np

from karat.quant.bits import fields, nibbles, packed_pairs
from karat.quant.format import Blocks, Coding, Format, Parts, Values, half, half_bytes, inverted
from karat.quant.k_native import fit_in_turn
from karat.quant.k_scales import integers_around_zero, largest_of


def codes(blocks: Blocks) -> Parts:
    high = fields(blocks[:, 104:108], 4, (0, 2, 4, 6), 2).reshape(-1, 16) << np.uint8(4)
    six_bits = (nibbles(blocks[:, 96:104], 8) | high).astype(np.int8) - np.int8(32)
    low = fields(blocks[:, 32:96], 32, (0, 2, 4, 6), 2).reshape(-1, 256)
    is_set = fields(blocks[:, :32], 32, range(8), 1).reshape(-1, 256)
    integers = (low | is_set << np.uint8(2)).astype(np.int8) - np.int8(4)
    return integers, half(blocks, 108) * six_bits.astype(np.float32), None


def pack(values: Values) -> Blocks:
    groups = values.reshape(-1, 16)
    found = fit_in_turn(groups, 4)
    fitted = found.scale.reshape(-1, 16)
    top = largest_of(fitted)
    inverse = np.where(top == 0, np.float32(0), np.float32(-32) / top)
    factor = half_bytes(inverted(inverse))
    integers = np.clip(np.rint(fitted * inverse), -32, 31)
    scales = half(factor, 0) * integers
    codes = integers_around_zero(groups, scales, found.integers, 4).reshape(-1, 256)
    high = np.packbits((codes >> 2).reshape(-1, 8, 32).swapaxes(1, 2), axis=2, bitorder="little").reshape(-1, 32)
    six_bits = np.where(top == 0, 0, integers + np.float32(32)).astype(np.uint8)
    quarters = (six_bits >> 4).reshape(-1, 4, 4)
    parts = [
        high,
        packed_pairs(codes & np.uint8(3)),
        six_bits[:, :8] & np.uint8(15) | six_bits[:, 8:] << 4,
        quarters[:, 0] | quarters[:, 1] << 2 | quarters[:, 2] << 4 | quarters[:, 3] << 6,
        factor,
    ]
    return np.concatenate(parts, axis=1)


CODING = Coding(codes, sub_block=16, lowest=-4, highest=3)
FORMAT = Format("Q3_K", ggml_type=11, block_size=256, block_bytes=110, unpack=CODING.values, pack=pack, coding=CODING)
