"""Q5_1: 32 values in 24 bytes: a float16 scale, a float16 minimum, then integers from 0 to 31 as in Q5_0.

A value is scale * integer + minimum.
"""

import numpy as np

from karat.quant.bits import nibbles
from karat.quant.format import Blocks, Format, Values, half, half_bytes, steps_above_minimum
from karat.quant.q5_0 import fifth_bits, low_and_fifth_bits


def unpack(blocks: Blocks) -> Values:
    integers = fifth_bits(blocks[:, 4:8]) | nibbles(blocks[:, 8:], 16)
    return half(blocks, 0) * integers.astype(np.float32) + half(blocks, 2)


def pack(values: Values) -> Blocks:
    scale, minimum, integers = steps_above_minimum(values, 31)
    return np.concatenate([half_bytes(scale), half_bytes(minimum), *low_and_fifth_bits(integers)], axis=1)


FORMAT = Format("Q5_1", ggml_type=7, block_size=32, block_bytes=24, unpack=unpack, pack=pack)
