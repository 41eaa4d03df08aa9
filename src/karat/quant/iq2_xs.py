"""IQ2_XS: 256 values in 74 bytes, in 16 groups of 16. A value is scale * (0.5 + s) / 4 * point * sign.

    byte 0       2                                        66                     74
         | scale | 32 words of 16 bits: point number      | 16 group scales s    |
           f16   | (bits 0-8), signs (bits 9-15)          | 4 bits each

A point is eight values. Seven bits hold its eight signs (karat.quant.iq_signs).
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
