"""Q8_0: 32 values in 34 bytes. A value is scale * integer.

byte 0       2                        34
     | scale | 32 integers            |
       f16     int8
"""

import numpy as np

from karat.quant.format import Blocks, Coding, Format, Parts, Values, defined, half, half_bytes, inverted


def codes(blocks: Blocks) -> Parts:
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8), half(blocks, 0), None


def pack(values: Values) -> Blocks:
    """The largest magnitude becomes 127. Halves are rounded away from zero."""
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scaled = defined(values * inverted(scale))
    magnitude = np.abs(scaled)
    floor = np.floor(magnitude)
    integers = np.copysign(floor + (magnitude - floor >= np.float32(0.5)), scaled).astype(np.int8)
    return np.concatenate([half_bytes(scale), integers.view(np.uint8)], axis=1)


CODING = Coding(codes, sub_block=32, lowest=-128, highest=127)
FORMAT = Format("Q8_0", ggml_type=8, block_size=32, block_bytes=34, unpack=CODING.values, pack=pack, coding=CODING)
