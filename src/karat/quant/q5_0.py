"""Q5_0: 32 values in 22 bytes: a float16 scale, the 32 fifth bits, then 16 bytes of low halves; integers -16 to 15.

The low halves lie as in Q4_0; bit i of the fifth bits belongs to value i. What they make is 16 too large.
"""

import numpy as np

from karat.quant.bits import nibbles, single_bits
from karat.quant.format import Blocks, Format, Values, half, half_bytes, steps_around_zero


def unpack(blocks: Blocks) -> Values:
    integers = fifth_bits(blocks[:, 2:6]) | nibbles(blocks[:, 6:], 16)
    return half(blocks, 0) * (integers.astype(np.int8) - np.int8(16)).astype(np.float32)


def fifth_bits(packed: Blocks) -> Blocks:
    """16 for each bit that is set: [n, 4] to [n, 32]."""
    return single_bits(packed).reshape(len(packed), 32) << np.uint8(4)


def pack(values: Values) -> Blocks:
    scale, integers = steps_around_zero(values, 16)
    return np.concatenate([half_bytes(scale), *low_and_fifth_bits(integers)], axis=1)


def low_and_fifth_bits(integers: Blocks) -> tuple[Blocks, Blocks]:
    """Integers [n, 32] of five bits as the bytes of the fifth bits [n, 4] and of the low halves [n, 16]."""
    low = integers & np.uint8(15)
    return np.packbits(integers >> 4, axis=1, bitorder="little"), low[:, :16] | low[:, 16:] << np.uint8(4)


FORMAT = Format("Q5_0", ggml_type=6, block_size=32, block_bytes=22, unpack=unpack, pack=pack)
