"""IQ3_XXS: 256 values in 98 bytes, in 8 groups of 32. A value is scale * (0.5 + s) / 2 * point * sign.

    byte 0       2                    66                        98
         | scale | 64 point numbers   | 8 words of 32 bits, a   |
           f16   | 8 bits each        | group each              |

A group's word: bits 0-27 the signs of its four runs of eight values, 7 bits each (karat.quant.iq_signs), 28-31 its
scale s. A point is four values.
"""

import numpy as np

from karat.quant.format import Blocks, Format, Values, half
from karat.quant.iq_books import book
from karat.quant.iq_signs import EVEN_SIGNS

_SIGN_SHIFTS = np.array([0, 7, 14, 21], np.uint32)


def unpack(blocks: Blocks) -> Values:
    words = np.ascontiguousarray(blocks[:, 66:]).view("<u4")  # [n, groups]
    scales = half(blocks, 0) * (np.float32(0.5) + (words >> 28).astype(np.float32)) * np.float32(0.5)
    points = book("IQ3_XXS")[blocks[:, 2:66]].reshape(-1, 8, 32)
    signs = EVEN_SIGNS[(words[:, :, None] >> _SIGN_SHIFTS) & np.uint32(127)].reshape(-1, 8, 32)
    values: Values = scales[:, :, None] * points * signs
    return values.reshape(-1, 256)


FORMAT = Format("IQ3_XXS", ggml_type=18, block_size=256, block_bytes=98, unpack=unpack)
