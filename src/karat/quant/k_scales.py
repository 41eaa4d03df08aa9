"""Scales of groups in a few bits and the integers that go with them, and how Q4_K and Q5_K pack their scales.

Blocks of Q4_K and Q5_K begin with 16 bytes: two float16 factors, then eight scales and eight minimums of six bits:

    byte 0        2        4                8                12               16
         | factor | factor | 4 bytes        | 4 bytes        | 4 bytes        |
         | scales | min.   |                |                |                |

    byte  4 + i: bits 0-5 scale i;               bits 6-7 the two high bits of scale i + 4
    byte  8 + i: bits 0-5 minimum i;             bits 6-7 the two high bits of minimum i + 4
    byte 12 + i: bits 0-3 low of scale i + 4;    bits 4-7 low of minimum i + 4              (i = 0 … 3)
"""

import numpy as np
from numpy.typing import NDArray

from karat.quant.format import Blocks, Values, half, half_bytes
from karat.quant.k_native import fit_with_minimum


def unpack_scales(blocks: Blocks) -> tuple[Values, Values]:
    """Scales and minimums [n, 8] of blocks that begin with these 16 bytes, factors multiplied in."""
    first, second, third = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], axis=1)
    minimums = np.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], axis=1)
    return half(blocks, 0) * scales.astype(np.float32), half(blocks, 2) * minimums.astype(np.float32)


def pack_groups(values: Values, largest: int, first: float, step: float, num_steps: int) -> tuple[Blocks, Blocks]:
    """The first 16 bytes [n, 16] of blocks of values [n, 256], and the values' integers [n, 256] from 0 to `largest`.

    `first`, `step` and `num_steps` are arguments of `fit_with_minimum`.
    """
    groups = values.reshape(-1, 32)
    found = fit_with_minimum(groups, largest, first, step, num_steps)
    (factor, scales), (factor_of_minimums, minimums) = (
        in_steps(part.reshape(-1, 8), 63) for part in (found.scale, found.minimum)
    )
    head = np.concatenate([factor, factor_of_minimums, _pack_six_bits(scales, minimums)], axis=1)
    integers = integers_above_minimum(groups, *unpack_scales(head), found.integers, largest)
    return head, integers.reshape(-1, 256)


def in_steps(fitted: Values, num_steps: int) -> tuple[Blocks, Blocks]:
    """Numbers [n, groups] as factor * integer: the float16 factors as bytes [n, 2], integers [n, groups].

    Integers go from 0 to `num_steps`; numbers below zero become 0.
    """
    top = np.maximum(fitted.max(axis=1, keepdims=True), np.float32(0))
    inverse = np.where(top > 0, np.float32(num_steps) / top, np.float32(0))
    integers = np.clip(np.rint(fitted * inverse), 0, num_steps).astype(np.uint8)
    return half_bytes(top / np.float32(num_steps)), integers


def integers_above_minimum(
    groups: Values, scales: Values, minimums: Values, fitted: NDArray[np.int8], largest: int
) -> Blocks:
    """The best integers [groups, size] from 0 to `largest` for scales and minimums [n, groups] as they are stored.

    Where a scale is zero any integers give the same values; the fitted ones are taken, as ggml does.
    """
    scale, minimum = scales.reshape(-1, 1), minimums.reshape(-1, 1)
    divisor = np.where(scale == 0, np.float32(1), scale)
    integers = np.clip(np.rint((groups + minimum) / divisor), 0, largest)
    return np.where(scale == 0, fitted, integers).astype(np.uint8)


def integers_around_zero(groups: Values, scales: Values, fitted: NDArray[np.int8], largest: int) -> Blocks:
    """As `integers_above_minimum`, for integers from -largest to largest - 1; `largest` is added to each."""
    scale = scales.reshape(-1, 1)
    divisor = np.where(scale == 0, np.float32(1), scale)
    integers = np.clip(np.rint(groups / divisor), -largest, largest - 1)
    return (np.where(scale == 0, fitted, integers) + np.float32(largest)).astype(np.uint8)


def largest_of(fitted: Values) -> Values:
    """The number of largest magnitude [n, 1] (the first of equals) of numbers [n, groups]."""
    return np.take_along_axis(fitted, np.abs(fitted).argmax(axis=1, keepdims=True), axis=1)


def _pack_six_bits(scales: Blocks, minimums: Blocks) -> Blocks:
    """Scales and minimums [n, 8] of six bits as bytes [n, 12]."""
    first = scales[:, :4] | (scales[:, 4:] & 48) << 2
    second = minimums[:, :4] | (minimums[:, 4:] & 48) << 2
    third = (scales[:, 4:] & 15) | minimums[:, 4:] << 4
    return np.concatenate([first, second, third], axis=1)
