"""Q6_K: 256 values in 210 bytes, 6 bits each, in 16 groups of 16.

Bytes 0 to 127: the low halves, in runs of 64 bytes that hold 64 values in their low and the next 64 in their high
halves; 128 to 191: the two high bits, laid as in Q2_K; 192 to 207: signed 8-bit scales; 208: their float16 factor. The
integers are 32 too large.
"""

import numpy as np

from karat.quant.bits import fields, nibbles
from karat.quant.format import Blocks, Format, Values, half


def unpack(blocks: Blocks) -> Values:
    scales = half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)  # [n, groups]
    high = fields(blocks[:, 128:192], 32, (0, 2, 4, 6), 2).reshape(-1, 256) << np.uint8(4)
    integers = (nibbles(blocks[:, :128], 64) | high).astype(np.int8) - np.int8(32)
    return (scales[:, :, None] * integers.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)


FORMAT = Format("Q6_K", ggml_type=14, block_size=256, block_bytes=210, unpack=unpack)
