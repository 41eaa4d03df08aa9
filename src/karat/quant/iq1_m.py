"""IQ1_M: 256 values in 56 bytes, in 16 groups of 16. A value is scale * (2 s + 1) * (point + shift).

    byte 0                        32                             48             56
         | 32 point numbers:      | 32 × 4 bits: high 3 bits of  | 4 words of   |
         | low 8 bits             | the number, then shift sign  | 16 bits      |

A point is eight values of IQ1_S's book; its number has 11 bits. The shift is 1/8, or -1/8 where the sign bit is
set. Word w holds the 3-bit scales s of groups 4 w to 4 w + 3 in bits 0-11, and in bits 12-15 a quarter of the
float16 scale, the lowest quarter in word 0.
"""

import numpy as np

from karat.quant.bits import nibbles, words
from karat.quant.format import Blocks, Format, Values
from karat.quant.iq1_s import SHIFT
from karat.quant.iq_books import book


def unpack(blocks: Blocks) -> Values:
    word = words(blocks, 48, 56)  # [n, 4]
    parts = (word >> np.uint16(12)) << np.array([0, 4, 8, 12], np.uint16)
    scale = np.bitwise_or.reduce(parts, axis=1, keepdims=True).view(np.float16).astype(np.float32)
    steps = (word[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)).reshape(-1, 16)
    scales = scale * (steps * np.uint16(2) + np.uint16(1)).astype(np.float32)  # [n, groups]
    extra = nibbles(blocks[:, 32:48], 1)  # [n, 32]
    points = book("IQ1_S")[blocks[:, :32] | (extra & np.uint8(7)).astype(np.uint16) << np.uint16(8)]  # [n, 32, 8]
    shifts = np.where(extra >> 3 == 0, SHIFT, -SHIFT)
    return (scales[:, :, None] * (points + shifts[:, :, None]).reshape(-1, 16, 16)).reshape(-1, 256)


FORMAT = Format("IQ1_M", ggml_type=29, block_size=256, block_bytes=56, unpack=unpack)
