"""TQ2_0: 256 values in 66 bytes. A value is scale * (integer - 1): -1, 0 or 1 (or 2) times the scale.

byte 0                               64      66
     | integers, 2 bits each         | scale |
       64 bytes, as in Q2_K            f16
"""

import numpy as np

from karat.quant.bits import fields
from karat.quant.format import Blocks, Format, Values, half


def unpack(blocks: Blocks) -> Values:
    integers = fields(blocks[:, :64], 32, (0, 2, 4, 6), 2).reshape(-1, 256).astype(np.int8) - np.int8(1)
    return half(blocks, 64) * integers.astype(np.float32)


FORMAT = Format("TQ2_0", ggml_type=35, block_size=256, block_bytes=66, unpack=unpack)
