"""Q6_K: 256 values in 210 bytes, 6 bits each, in 16 groups of 16. A value is factor * scale * (integer - 32).

byte 0                              128                192           208      210
     | low 4 bits: 2 runs of 64     | high 2 bits      | 16 scales   | factor |
     | bytes; byte j of run k holds | 64 bytes, as in  | int8        | f16    |
     | values 128 k + j (low) and   | Q2_K             |             |        |
     | 128 k + 64 + j (high)        |                  |             |        |
"""

import numpy as np

from karat.quant.bits import fields, nibbles, packed_pairs
from karat.quant.format import Blocks, Coding, Format, Parts, Values, half, half_bytes
from karat.quant.k_native import fit_symmetric
from karat.quant.k_scales import integers_around_zero, largest_of


def codes(blocks: Blocks) -> Parts:
    scales = half(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    high = fields(blocks[:, 128:192], 32, (0, 2, 4, 6), 2).reshape(-1, 256) << np.uint8(4)
    return (nibbles(blocks[:, :128], 64) | high).astype(np.int8) - np.int8(32), scales, None


def pack(values: Values) -> Blocks:
    groups = values.reshape(-1, 16)
    found = fit_symmetric(groups, 32)
    fitted = found.scale.reshape(-1, 16)
    largest = largest_of(fitted)
    is_zero = np.abs(largest) < np.float32(1e-15)
    inverse = np.where(is_zero, np.float32(0), np.float32(-128) / largest)
    factor = half_bytes(np.where(is_zero, np.float32(0), np.float32(1) / inverse))
    eight_bits = np.minimum(np.rint(fitted * inverse), 127).astype(np.int8)
    scales = half(factor, 0) * eight_bits.astype(np.float32)
    six_bits = integers_around_zero(groups, scales, found.integers, 32).reshape(-1, 256)
    low = (six_bits & np.uint8(15)).reshape(-1, 2, 2, 64)
    parts = [
        (low[:, :, 0] | low[:, :, 1] << 4).reshape(-1, 128),
        packed_pairs(six_bits >> np.uint8(4)),
        eight_bits.view(np.uint8),
        factor,
    ]
    return np.concatenate(parts, axis=1)


CODING = Coding(codes, sub_block=16, lowest=-32, highest=31)
FORMAT = Format("Q6_K", ggml_type=14, block_size=256, block_bytes=210, unpack=CODING.values, pack=pack, coding=CODING)
