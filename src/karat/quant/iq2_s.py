"""IQ2_S: 256 values in 82 bytes, in 16 groups of 16. A value is scale * (0.5 + s) / 4 * point * sign.

    byte 0       2                    34             66                   74                82
         | scale | 32 point numbers:  | 256 signs    | the numbers' high  | 16 group scales |
           f16   | low 8 bits         | 1 bit each   | 2 bits             | s, 4 bits each  |

A point is eight values.
"""

import numpy as np

from karat.quant.bits import fields, nibbles, signs
from karat.quant.format import Blocks, Format, Values, half
from karat.quant.iq_books import book


def unpack(blocks: Blocks) -> Values:
    high = fields(blocks[:, 66:74], 1, (0, 2, 4, 6), 2).reshape(-1, 32).astype(np.uint16) << np.uint16(8)
    points = book("IQ2_S")[blocks[:, 2:34] | high].reshape(-1, 16, 16)
    scales = half(blocks, 0) * (np.float32(0.5) + nibbles(blocks[:, 74:], 1).astype(np.float32)) * np.float32(0.25)
    return (scales[:, :, None] * points * signs(blocks[:, 34:66]).reshape(-1, 16, 16)).reshape(-1, 256)


FORMAT = Format("IQ2_S", ggml_type=22, block_size=256, block_bytes=82, unpack=unpack)
