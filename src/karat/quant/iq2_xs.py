"""IQ2_XS: 256 values in 74 bytes, in 16 groups of 16: a float16 scale, 32 integers of 16 bits, 16 scales of 4 bits.

An integer's 9 low bits choose a point of eight values, its 7 high bits are their signs. A value is
scale * (0.5 + group scale) / 4 * point * sign.
"""

import numpy as np

from karat.quant.bits import nibbles, words
from karat.quant.format import Blocks, Format, Values, half
from karat.quant.iq_books import book
from karat.quant.iq_signs import EVEN_SIGNS


def unpack(blocks: Blocks) -> Values:
    integers = words(blocks, 2, 66)  # [n, 32]
    scales = half(blocks, 0) * (np.float32(0.5) + nibbles(blocks[:, 66:], 1).astype(np.float32)) * np.float32(0.25)
    points = book("IQ2_XS")[integers & np.uint16(511)].reshape(-1, 16, 16)
    signs = EVEN_SIGNS[integers >> np.uint16(9)].reshape(-1, 16, 16)
    values: Values = scales[:, :, None] * points * signs
    return values.reshape(-1, 256)


FORMAT = Format("IQ2_XS", ggml_type=17, block_size=256, block_bytes=74, unpack=unpack)
