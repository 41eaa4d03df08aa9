"""Scales of groups in a few bits and the integers that go with them, and how Q4_K and Q5_K pack theirs.

Those two have eight scales and minimums of six bits in twelve bytes. Bytes 0 to 3 hold scales 0 to 3 in six bits, bytes
4 to 7 minimums 0 to 3. Bytes 8 to 11 hold the four low bits of scales (low half) and minimums (high half) 4 to 7, whose
two high bits are those of the first eight bytes.
"""

import numpy as np
from numpy.typing import NDArray

from karat.quant.format import Blocks, Values, half, half_bytes
from karat.quant.k_native import fit_with_minimum


def unpack_scales(blocks: Blocks) -> tuple[Values, Values]:
    """Scales and minimums [n, 8] of blocks that begin with two float16 factors and these twelve bytes."""
    first, second, third = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], axis=1)
    minimums = np.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], axis=1)
    return half(blocks, 0) * scales.astype(np.float32), half(blocks, 2) * minimums.astype(np.float32)


def pack_groups(values: Values, largest: int, first: float, step: float, num_steps: int) -> tuple[Blocks, Blocks]:
    """The first sixteen bytes [n, 16] for values [n, 256], and their integers [n, 256] from 0 to `largest`.

    The further arguments are those of `fit_with_minimum`.
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
    """Numbers [n, groups] as a float16 factor, in bytes [n, 2], times integers [n, groups] up to `num_steps`."""
    top = np.maximum(fitted.max(axis=1, keepdims=True), np.float32(0))
    inverse = np.where(top > 0, np.float32(num_steps) / top, np.float32(0))
    integers = np.clip(np.rint(fitted * inverse), 0, num_steps).astype(np.uint8)
    return half_bytes(top / np.float32(num_steps)), integers


def integers_above_minimum(
    groups: Values, scales: Values, minimums: Values, fitted: NDArray[np.int8], largest: int
) -> Blocks:
    """The best integers [groups, size] from 0 to `largest` for scales and minimums [n, groups] as they are stored.

    Where a scale is zero they say nothing, and are the fitted ones, as ggml's are.
    """
    scale, minimum = scales.reshape(-1, 1), minimums.reshape(-1, 1)
    divisor = np.where(scale == 0, np.float32(1), scale)
    integers = np.clip(np.rint((groups + minimum) / divisor), 0, largest)
    return np.where(scale == 0, fitted, integers).astype(np.uint8)


def integers_around_zero(groups: Values, scales: Values, fitted: NDArray[np.int8], largest: int) -> Blocks:
    """As `integers_above_minimum`, from -largest to largest - 1 and stored as from 0."""
    scale = scales.reshape(-1, 1)
    divisor = np.where(scale == 0, np.float32(1), scale)
    integers = np.clip(np.rint(groups / divisor), -largest, largest - 1)
    return (np.where(scale == 0, fitted, integers) + np.float32(largest)).astype(np.uint8)


def largest_of(fitted: Values) -> Values:
    """Of numbers [n, groups], that of largest magnitude [n, 1], the first of equals."""
    return np.take_along_axis(fitted, np.abs(fitted).argmax(axis=1, keepdims=True), axis=1)


def _pack_six_bits(scales: Blocks, minimums: Blocks) -> Blocks:
    """Scales and minimums [n, 8] of six bits as twelve bytes."""
    first = scales[:, :4] | (scales[:, 4:] & 48) << 2
    second = minimums[:, :4] | (minimums[:, 4:] & 48) << 2
    third = (scales[:, 4:] & 15) | minimums[:, 4:] << 4
    return np.concatenate([first, second, third], axis=1)
