"""IQ1_S: 256 values in 50 bytes, in 8 groups of 32: a float16 scale, the low bytes of 32 numbers of points, 8 words.

A group's word of 16 bits holds the three high bits of its four numbers, its 3-bit scale s, and on top whether the shift
of its values is 1/8 or -1/8. A point has eight values of -1, 0 and 1; a value is scale * (2 s + 1) * (point + shift).
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
