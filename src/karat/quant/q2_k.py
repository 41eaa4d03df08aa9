"""Q2_K: 256 values in 84 bytes, 2 bits each, in 16 groups of 16.

Bytes 0 to 15: of each group, the scale (low half) and the minimum (high half), 4 bits each; 16 to 79: the integers; 80:
float16 scale of the scales; 82: of the minimums. Values 0 to 127 lie in the first 32 bytes of integers, one run of 32
in each pair of bits from the lowest up, the others in the next 32. A value is scale * integer - minimum.
"""

import numpy as np

from karat.quant.bits import fields
from karat.quant.format import Blocks, Format, Values, half


def unpack(blocks: Blocks) -> Values:
    scales = half(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)  # [n, groups]
    minimums = half(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    integers = fields(blocks[:, 16:80], 32, (0, 2, 4, 6), 2).reshape(-1, 16, 16).astype(np.float32)
    return (scales[:, :, None] * integers - minimums[:, :, None]).reshape(-1, 256)


FORMAT = Format("Q2_K", ggml_type=10, block_size=256, block_bytes=84, unpack=unpack)
