"""Q5_0: 32 values in 22 bytes: a float16 scale, the 32 fifth bits, then 16 bytes of low halves; integers -16 to 15.

The low halves lie as in Q4_0; bit i of the fifth bits belongs to value i. What they make is 16 too large.
"""

import numpy as np

from karat.quant.bits import nibbles, single_bits
from karat.quant.format import Blocks, Format, Values, half


def unpack(blocks: Blocks) -> Values:
    integers = fifth_bits(blocks[:, 2:6]) | nibbles(blocks[:, 6:], 16)
    return half(blocks, 0) * (integers.astype(np.int8) - np.int8(16)).astype(np.float32)


def fifth_bits(packed: Blocks) -> Blocks:
    """16 for each bit that is set: [n, 4] to [n, 32]."""
    return single_bits(packed).reshape(len(packed), 32) << np.uint8(4)


FORMAT = Format("Q5_0", ggml_type=6, block_size=32, block_bytes=22, unpack=unpack)
