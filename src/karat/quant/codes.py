"""Blocks as integers: the codes of a format, with scales and minimums of their own, as integer kernels read them.

A value of a block is scale * code + minimum in float32 with one rounding a step (without a minimum: scale * code), bit
for bit what `Format.dequantize` gives. Scales and minimums belong to sub-blocks:

| format       | codes       | sub-block | minimums |
|--------------|-------------|-----------|----------|
| Q4_0         | -8 … 7      | 32        |          |
| Q4_1         | 0 … 15      | 32        | yes      |
| Q5_0         | -16 … 15    | 32        |          |
| Q5_1         | 0 … 31      | 32        | yes      |
| Q8_0         | -128 … 127  | 32        |          |
| Q2_K         | 0 … 3       | 16        | yes      |
| Q3_K         | -4 … 3      | 16        |          |
| Q4_K         | 0 … 15      | 32        | yes      |
| Q5_K         | 0 … 31      | 32        | yes      |
| Q6_K         | -32 … 31    | 16        |          |
| IQ4_NL       | -127 … 113  | 32        |          |
| IQ4_XS       | -127 … 113  | 32        |          |

Q8_0, IQ4_NL and IQ4_XS need codes of 8 bits; codes of the others fit 6 bits, with a zero point where they are signed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.quant.bits import fields, nibbles, words
from karat.quant.format import Blocks, Values, half
from karat.quant.iq4_nl import LEVELS
from karat.quant.k_scales import unpack_scales
from karat.quant.q5_0 import fifth_bits

Codes = NDArray[np.int8]
Parts = tuple[Codes, Values, Values | None]  # codes [n, block_size], scales and minimums [n, sub-blocks]


@dataclass(frozen=True, slots=True)
class Coding:
    """The integers of a format: `read` takes blocks [n, block_bytes] apart; `sub_block` columns share a scale.

    Codes are `lowest` … `highest`.
    """

    read: Callable[[Blocks], Parts]
    sub_block: int
    lowest: int
    highest: int

    @property
    def largest(self) -> int:
        """The largest magnitude of a code."""
        return max(-self.lowest, self.highest)


def _q4_0(blocks: Blocks) -> Parts:
    return nibbles(blocks[:, 2:], 16).astype(np.int8) - np.int8(8), half(blocks, 0), None


def _q4_1(blocks: Blocks) -> Parts:
    return nibbles(blocks[:, 4:], 16).view(np.int8), half(blocks, 0), half(blocks, 2)


def _q5_0(blocks: Blocks) -> Parts:
    codes = fifth_bits(blocks[:, 2:6]) | nibbles(blocks[:, 6:], 16)
    return codes.astype(np.int8) - np.int8(16), half(blocks, 0), None


def _q5_1(blocks: Blocks) -> Parts:
    codes = fifth_bits(blocks[:, 4:8]) | nibbles(blocks[:, 8:], 16)
    return codes.view(np.int8), half(blocks, 0), half(blocks, 2)


def _q8_0(blocks: Blocks) -> Parts:
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8), half(blocks, 0), None


def _q2_k(blocks: Blocks) -> Parts:
    codes = fields(blocks[:, 16:80], 32, (0, 2, 4, 6), 2).reshape(-1, 256)
    scales = half(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
    return codes.view(np.int8), scales, -(half(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32))


def _q3_k(blocks: Blocks) -> Parts:
    low = fields(blocks[:, 32:96], 32, (0, 2, 4, 6), 2).reshape(-1, 256)
    third = fields(blocks[:, :32], 32, range(8), 1).reshape(-1, 256)
    high = fields(blocks[:, 104:108], 4, (0, 2, 4, 6), 2).reshape(-1, 16) << np.uint8(4)
    six_bits = (nibbles(blocks[:, 96:104], 8) | high).astype(np.int8) - np.int8(32)
    codes = (low | third << np.uint8(2)).astype(np.int8) - np.int8(4)
    return codes, half(blocks, 108) * six_bits.astype(np.float32), None


def _q4_k(blocks: Blocks) -> Parts:
    scales, minimums = unpack_scales(blocks)
    return nibbles(blocks[:, 16:], 32).view(np.int8), scales, -minimums


def _q5_k(blocks: Blocks) -> Parts:
    scales, minimums = unpack_scales(blocks)
    high = fields(blocks[:, 16:48], 32, range(8), 1).reshape(-1, 256) << np.uint8(4)
    return (nibbles(blocks[:, 48:], 32) | high).view(np.int8), scales, -minimums


def _q6_k(blocks: Blocks) -> Parts:
    high = fields(blocks[:, 128:192], 32, (0, 2, 4, 6), 2).reshape(-1, 256) << np.uint8(4)
    scales = half(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return (nibbles(blocks[:, :128], 64) | high).astype(np.int8) - np.int8(32), scales, None


def _iq4_nl(blocks: Blocks) -> Parts:
    return _LEVELS[nibbles(blocks[:, 2:], 16)], half(blocks, 0), None


def _iq4_xs(blocks: Blocks) -> Parts:
    high = (words(blocks, 2, 4) >> np.arange(0, 16, 2, dtype=np.uint16)).astype(np.uint8) & np.uint8(3)
    six_bits = (nibbles(blocks[:, 4:8], 1) | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    return _LEVELS[nibbles(blocks[:, 8:], 16)], half(blocks, 0) * six_bits.astype(np.float32), None


_LEVELS: Codes = LEVELS.astype(np.int8)

CODINGS: Mapping[str, Coding] = {
    "Q4_0": Coding(_q4_0, 32, -8, 7),
    "Q4_1": Coding(_q4_1, 32, 0, 15),
    "Q5_0": Coding(_q5_0, 32, -16, 15),
    "Q5_1": Coding(_q5_1, 32, 0, 31),
    "Q8_0": Coding(_q8_0, 32, -128, 127),
    "Q2_K": Coding(_q2_k, 16, 0, 3),
    "Q3_K": Coding(_q3_k, 16, -4, 3),
    "Q4_K": Coding(_q4_k, 32, 0, 15),
    "Q5_K": Coding(_q5_k, 32, 0, 31),
    "Q6_K": Coding(_q6_k, 16, -32, 31),
    "IQ4_NL": Coding(_iq4_nl, 32, -127, 113),
    "IQ4_XS": Coding(_iq4_xs, 32, -127, 113),
}
