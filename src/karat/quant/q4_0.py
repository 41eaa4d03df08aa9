"""Q4_0: 32 values in 18 bytes: a float16 scale, then 16 bytes of integers from -8 to 7.

Byte i holds value i in its low half and value i + 16 in its high half, each plus 8.
"""

import numpy as np

from karat.quant.bits import nibbles
from karat.quant.format import Blocks, Format, Values, half, half_bytes


def unpack(blocks: Blocks) -> Values:
    integers = nibbles(blocks[:, 2:], 16).astype(np.int8) - np.int8(8)
    return half(blocks, 0) * integers.astype(np.float32)


def pack(values: Values) -> Blocks:
    """The value of largest magnitude, the first of equals, becomes -8 exactly; the others round half up."""
    largest = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)
    scale = largest / np.float32(-8)
    inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    shifted = values * inverse + np.float32(8.5)  # two roundings
    # The inverse of a scale below 2**-128 is infinite; its float16 is zero, and the integers then mean nothing.
    shifted[~np.isfinite(shifted)] = 0
    integers = np.minimum(shifted.astype(np.uint8), np.uint8(15))
    return np.concatenate([half_bytes(scale), integers[:, :16] | integers[:, 16:] << 4], axis=1)


FORMAT = Format("Q4_0", ggml_type=2, block_size=32, block_bytes=18, unpack=unpack, pack=pack)
