"""Q2_K: 256 values in 84 bytes, 2 bits each, in 16 groups of 16.

Bytes 0 to 15: of each group, the scale (low half) and the minimum (high half), 4 bits each; 16 to 79: the integers; 80:
float16 scale of the scales; 82: of the minimums. Values 0 to 127 lie in the first 32 bytes of integers, one run of 32
in each pair of bits from the lowest up, the others in the next 32. A value is scale * integer - minimum.
"""

import numpy as np

from karat.quant.bits import fields, packed_pairs
from karat.quant.format import Blocks, Format, Values, half
from karat.quant.k_native import fit_with_minimum
from karat.quant.k_scales import in_steps, integers_above_minimum


def unpack(blocks: Blocks) -> Values:
    scales, minimums = _unpack_scales(blocks[:, :16], blocks[:, 80:])
    integers = fields(blocks[:, 16:80], 32, (0, 2, 4, 6), 2).reshape(-1, 16, 16).astype(np.float32)
    return (scales[:, :, None] * integers - minimums[:, :, None]).reshape(-1, 256)


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


FORMAT = Format("Q2_K", ggml_type=10, block_size=256, block_bytes=84, unpack=unpack, pack=pack)
