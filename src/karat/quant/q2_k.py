"""Q2_K: 256 values in 84 bytes, 2 bits each, in 16 groups of 16. A value is scale * integer - minimum.

    byte 0                            16            80       82       84
         | 16 bytes: scale (low) and  | integers    | factor | factor |
         | minimum (high) of a group  | 64 bytes    | scales | min.   |
           4 bits each                  2 bits each   f16      f16

A group's scale and minimum are its 4 bits times the factor. The integers lie in two halves of 32 bytes, which hold
128 values each: value 32 * k + j of a half is in bits 2 k and 2 k + 1 of the half's byte j.
"""

import numpy as np

from karat.quant.bits import fields, packed_pairs
from karat.quant.format import Blocks, Coding, Format, Parts, Values, half
from karat.quant.k_native import fit_with_minimum
from karat.quant.k_scales import in_steps, integers_above_minimum


def codes(blocks: Blocks) -> Parts:
    scales, minimums = _unpack_scales(blocks[:, :16], blocks[:, 80:])
    integers = fields(blocks[:, 16:80], 32, (0, 2, 4, 6), 2).reshape(-1, 256)
    return integers.view(np.int8), scales, -minimums


def pack(values: Values) -> Blocks:
    groups = values.reshape(-1, 16)
    found = fit_with_minimum(groups, 3, -0.5, 0.1, 15, absolute=True)
    (factor, scales), (factor_of_minimums, minimums) = (
        in_steps(part.reshape(-1, 16), 15) for part in (found.scale, found.minimum)
    )
    four_bits, factors = scales | minimums << np.uint8(4), np.concatenate([factor, factor_of_minimums], axis=1)
    integers = integers_above_minimum(groups, *_unpack_scales(four_bits, factors), found.integers, 3)
    return np.concatenate([four_bits, packed_pairs(integers.reshape(-1, 256)), factors], axis=1)


def _unpack_scales(four_bits: Blocks, factors: Blocks) -> tuple[Values, Values]:
    """Scales and minimums [n, groups]."""
    scales = half(factors, 0) * (four_bits & 15).astype(np.float32)
    return scales, half(factors, 2) * (four_bits >> 4).astype(np.float32)


CODING = Coding(codes, sub_block=16, lowest=0, highest=3, subtract=True)
FORMAT = Format("Q2_K", ggml_type=10, block_size=256, block_bytes=84, unpack=CODING.values, pack=pack, coding=CODING)
