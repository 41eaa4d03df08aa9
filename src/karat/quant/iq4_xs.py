"""IQ4_XS: 256 values in 136 bytes, in 8 groups of 32 that are laid as in IQ4_NL.

Byte 0: a float16 scale; 2 and 3: the two high bits of the 6-bit group scales, as one integer; 4 to 7: their low bits, a
byte for two; 8 to 135: the levels chosen. The group scales are 32 too large.
"""

import numpy as np

from karat.quant.bits import nibbles, words
from karat.quant.format import Blocks, Format, Values, half
from karat.quant.iq4_nl import LEVELS


def unpack(blocks: Blocks) -> Values:
    high = (words(blocks, 2, 4) >> np.arange(0, 16, 2, dtype=np.uint16)).astype(np.uint8) & np.uint8(3)
    integers = (nibbles(blocks[:, 4:8], 1) | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    scales = half(blocks, 0) * integers.astype(np.float32)  # [n, groups]
    levels = LEVELS[nibbles(blocks[:, 8:], 16)].reshape(-1, 8, 32)
    return (scales[:, :, None] * levels).reshape(-1, 256)


FORMAT = Format("IQ4_XS", ggml_type=23, block_size=256, block_bytes=136, unpack=unpack)
