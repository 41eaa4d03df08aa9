"""IQ3_S: 256 values in 110 bytes, in 8 groups of 32. A value is scale * (1 + 2 s) * point * sign.

    byte 0       2                    66                   74             106                110
         | scale | 64 point numbers:  | the numbers'       | 256 signs    | 8 group scales   |
           f16   | low 8 bits         | ninth bits         | 1 bit each   | s, 4 bits each   |

A point is four values.
"""

import numpy as np

from karat.quant.bits import nibbles, signs, single_bits
from karat.quant.format import Blocks, Format, Values, half
from karat.quant.iq_books import book


def unpack(blocks: Blocks) -> Values:
    high = single_bits(blocks[:, 66:74]).reshape(-1, 64).astype(np.uint16) << np.uint16(8)
    points = book("IQ3_S")[blocks[:, 2:66] | high].reshape(-1, 8, 32)
    scales = half(blocks, 0) * (nibbles(blocks[:, 106:], 1) * np.uint8(2) + np.uint8(1)).astype(np.float32)
    return (scales[:, :, None] * points * signs(blocks[:, 74:106]).reshape(-1, 8, 32)).reshape(-1, 256)


FORMAT = Format("IQ3_S", ggml_type=21, block_size=256, block_bytes=110, unpack=unpack)
