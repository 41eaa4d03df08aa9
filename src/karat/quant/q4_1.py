"""Q4_1: 32 values in 20 bytes: a float16 scale, a float16 minimum, then 16 bytes of integers from 0 to 15.

Byte i holds value i in its low half and value i + 16 in its high half. A value is scale * integer + minimum.
"""

import numpy as np

from karat.quant.bits import nibbles
from karat.quant.format import Blocks, Format, Values, half, half_bytes, steps_above_minimum


def unpack(blocks: Blocks) -> Values:
    return half(blocks, 0) * nibbles(blocks[:, 4:], 16).astype(np.float32) + half(blocks, 2)


def pack(values: Values) -> Blocks:
    scale, minimum, integers = steps_above_minimum(values, 15)
    return np.concatenate([half_bytes(scale), half_bytes(minimum), integers[:, :16] | integers[:, 16:] << 4], axis=1)


FORMAT = Format("Q4_1", ggml_type=3, block_size=32, block_bytes=20, unpack=unpack, pack=pack)
