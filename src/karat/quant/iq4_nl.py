"""IQ4_NL: 32 values in 18 bytes: a float16 scale, then 16 bytes that choose among 16 uneven levels, laid as in Q4_0."""

import numpy as np

from karat.quant.bits import nibbles
from karat.quant.format import Blocks, Format, Values, half

LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
LEVELS.flags.writeable = False


def unpack(blocks: Blocks) -> Values:
    return half(blocks, 0) * LEVELS[nibbles(blocks[:, 2:], 16)]


FORMAT = Format("IQ4_NL", ggml_type=20, block_size=32, block_bytes=18, unpack=unpack)
