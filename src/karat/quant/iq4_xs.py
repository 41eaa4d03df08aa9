"""IQ4_XS: 256 values in 136 bytes, in 8 groups of 32. A value is scale * (s - 32) * one of 16 uneven levels.

byte 0       2                      4                    8                            136
     | scale | high 2 bits of the   | low 4 bits of the  | 8 runs of 16 bytes: level   |
       f16   | 8 group scales s     | 8 group scales     | numbers, as in IQ4_NL       |
               one word of 16 bits    two to a byte
"""

import numpy as np

from karat.quant.bits import nibbles, words
from karat.quant.format import Blocks, Coding, Format, Parts, Values, half, half_bytes, inverted
from karat.quant.iq4_nl import INTEGER_LEVELS, LEVELS, NUM_STEPS, pack_levels
from karat.quant.k_native import fit_levels
from karat.quant.k_scales import largest_of


def codes(blocks: Blocks) -> Parts:
    high = (words(blocks, 2, 4) >> np.arange(0, 16, 2, dtype=np.uint16)).astype(np.uint8) & np.uint8(3)
    six_bits = (nibbles(blocks[:, 4:8], 1) | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    scales = half(blocks, 0) * six_bits.astype(np.float32)
    return INTEGER_LEVELS[nibbles(blocks[:, 8:], 16)], scales, None


def pack(values: Values) -> Blocks:
    groups = values.reshape(-1, 32)
    fitted = fit_levels(groups, LEVELS, NUM_STEPS).reshape(-1, 8)
    factor = -largest_of(fitted) / np.float32(32)  # levels are chosen before it is rounded to float16, as in ggml
    integers = np.clip(np.rint(fitted * inverted(factor)), -32, 31)
    levels = pack_levels(groups, inverted((factor * integers).reshape(-1, 1))).reshape(-1, 128)
    six_bits = (integers + np.float32(32)).astype(np.uint8)
    high = ((six_bits >> 4).astype("<u2") << np.arange(0, 16, 2, dtype=np.uint16)).sum(axis=1, dtype="<u2")
    low = six_bits[:, ::2] & np.uint8(15) | six_bits[:, 1::2] << 4
    return np.concatenate([half_bytes(factor), high[:, None].view(np.uint8), low, levels], axis=1)


CODING = Coding(codes, sub_block=32, lowest=-127, highest=113)
FORMAT = Format("IQ4_XS", ggml_type=23, block_size=256, block_bytes=136, unpack=CODING.values, pack=pack, coding=CODING)
