"""IQ2_XXS: 256 values in 66 bytes, in 8 groups of 32. A value is scale * (0.5 + s) / 4 * point * sign.

    byte 0       2                                                                 66
         | scale | 8 groups of 8 bytes: 4 point numbers, then a word of 32 bits    |
           f16

A group's word: bits 0-27 the signs of its four points, 7 bits each (karat.quant.iq_signs), 28-31 its scale s. A
point is eight values.
"""

import numpy as np

from karat.quant.format import Blocks, Format, Values, half
from karat.quant.iq_books import book
from karat.quant.iq_signs import EVEN_SIGNS

_SIGN_SHIFTS = np.array([0, 7, 14, 21], np.uint32)


def unpack(blocks: Blocks) -> Values:
    groups = np.ascontiguousarray(blocks[:, 2:]).reshape(-1, 8, 8)
    words = np.ascontiguousarray(groups[:, :, 4:]).view("<u4")  # [n, groups, 1]
    scales = half(blocks, 0) * (np.float32(0.5) + (words[:, :, 0] >> 28).astype(np.float32)) * np.float32(0.25)
    points = book("IQ2_XXS")[groups[:, :, :4]]  # [n, groups, 4, 8]
    signs = EVEN_SIGNS[(words >> _SIGN_SHIFTS) & np.uint32(127)]
    values: Values = scales[:, :, None, None] * points * signs
    return values.reshape(-1, 256)


FORMAT = Format("IQ2_XXS", ggml_type=16, block_size=256, block_bytes=66, unpack=unpack)
