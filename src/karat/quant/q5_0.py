"""Q5_0: 32 values in 22 bytes. A value is scale * (integer - 16), with integers of five bits.

byte 0       2                       6                                            22
     | scale | fifth bits            | 16 bytes: integer i (low), i + 16 (high)    |
       f16     bit i: of integer i     the four low bits, laid out as in Q4_0
"""

import numpy as np

from karat.quant.bits import nibbles, single_bits
from karat.quant.format import Blocks, Coding, Format, Parts, Values, half, half_bytes, steps_around_zero


def codes(blocks: Blocks) -> Parts:
    integers = fifth_bits(blocks[:, 2:6]) | nibbles(blocks[:, 6:], 16)
    return integers.astype(np.int8) - np.int8(16), half(blocks, 0), None


def fifth_bits(packed: Blocks) -> Blocks:
    """16 for each bit that is set: [n, 4] to [n, 32]."""
    return single_bits(packed).reshape(len(packed), 32) << np.uint8(4)


def pack(values: Values) -> Blocks:
    scale, integers = steps_around_zero(values, 16)
    return np.concatenate([half_bytes(scale), *low_and_fifth_bits(integers)], axis=1)


def low_and_fifth_bits(integers: Blocks) -> tuple[Blocks, Blocks]:
    """Integers [n, 32] of five bits, packed: bytes [n, 4] of fifth bits, and bytes [n, 16] of the low four bits."""
    low = integers & np.uint8(15)
    return np.packbits(integers >> 4, axis=1, bitorder="little"), low[:, :16] | low[:, 16:] << np.uint8(4)


CODING = Coding(codes, sub_block=32, lowest=-16, highest=15)
FORMAT = Format("Q5_0", ggml_type=6, block_size=32, block_bytes=22, unpack=CODING.values, pack=pack, coding=CODING)
