"""Q3_K: 256 values in 110 bytes, 3 bits each, in 16 groups of 16.

Bytes 0 to 31: the high bits, value i in bit i // 32 of byte i % 32; 32 to 95: the two low bits, as in Q2_K; 96 to 107:
the 6-bit scales, 32 too large: the low halves of bytes 96 to 103 are the low bits of scales 0 to 7, their high halves
those of 8 to 15, and the pairs of bits of the last four bytes the high bits of scales 0 to 3, 4 to 7, 8 to 11 and 12 to
15; 108: the float16 scale of the scales. A value whose high bit is not set is 4 smaller.
"""

import numpy as np

from karat.quant.bits import fields, nibbles
from karat.quant.format import Blocks, Format, Values, half


def unpack(blocks: Blocks) -> Values:
    high = fields(blocks[:, 104:108], 4, (0, 2, 4, 6), 2).reshape(-1, 16) << np.uint8(4)
    integers = (nibbles(blocks[:, 96:104], 8) | high).astype(np.int8) - np.int8(32)
    scales = half(blocks, 108) * integers.astype(np.float32)  # [n, groups]
    low = fields(blocks[:, 32:96], 32, (0, 2, 4, 6), 2).reshape(-1, 256)
    is_set = fields(blocks[:, :32], 32, range(8), 1).reshape(-1, 256)
    values = (low | is_set << np.uint8(2)).astype(np.int8) - np.int8(4)
    return (scales[:, :, None] * values.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)


FORMAT = Format("Q3_K", ggml_type=11, block_size=256, block_bytes=110, unpack=unpack)
