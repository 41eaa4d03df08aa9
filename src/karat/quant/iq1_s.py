"""IQ1_S: 256 values in 50 bytes, in 8 groups of 32. A value is scale * (2 s + 1) * (point + shift).

    byte 0       2                     34                              50
         | scale | 32 point numbers:   | 8 words of 16 bits, a group   |
           f16   | low 8 bits          | each                          |

A group's word: bits 0-11 the high 3 bits of its four point numbers, 12-14 its scale s, 15 set for a shift of -1/8
(else 1/8). A point is eight values of -1, 0 and 1.
"""

import numpy as np

from karat.quant.bits import words
from karat.quant.format import Blocks, Format, Values, half
from karat.quant.iq_books import book

SHIFT = np.float32(0.125)


def unpack(blocks: Blocks) -> Values:
    word = words(blocks, 34, 50)  # [n, groups]
    scales = half(blocks, 0) * ((word >> np.uint16(12) & np.uint16(7)) * np.uint16(2) + np.uint16(1)).astype(np.float32)
    shifts = np.where(word >> np.uint16(15) == 0, SHIFT, -SHIFT)
    high = (word[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)).reshape(-1, 32) << np.uint16(8)
    points = book("IQ1_S")[blocks[:, 2:34] | high].reshape(-1, 8, 32)
    return (scales[:, :, None] * (points + shifts[:, :, None])).reshape(-1, 256)


FORMAT = Format("IQ1_S", ggml_type=19, block_size=256, block_bytes=50, unpack=unpack)
