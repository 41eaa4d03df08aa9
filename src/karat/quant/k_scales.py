"""The eight 6-bit scales and minimums that Q4_K and Q5_K pack into twelve bytes.

Bytes 0 to 3 hold scales 0 to 3 in six bits, bytes 4 to 7 minimums 0 to 3. Bytes 8 to 11 hold the four low bits of
scales (low half) and minimums (high half) 4 to 7, whose two high bits are those of the first eight bytes.
"""

import numpy as np

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
    fitted = [part.reshape(-1, 8) for part in (found.scale, found.minimum)]
    tops = [np.maximum(part.max(axis=1, keepdims=True), 0) for part in fitted]
    factors = [half_bytes(top / np.float32(63)) for top in tops]
    six_bits = [
        np.clip(np.rint(part * np.where(top > 0, np.float32(63) / top, np.float32(0))), 0, 63).astype(np.uint8)
        for part, top in zip(fitted, tops, strict=True)
    ]
    head = np.concatenate([*factors, _pack_six_bits(*six_bits)], axis=1)
    scales, minimums = (part.reshape(-1, 1) for part in unpack_scales(head))
    divisor = np.where(scales == 0, np.float32(1), scales)
    integers = np.clip(np.rint((groups + minimums) / divisor), 0, largest)
    integers = np.where(scales == 0, found.integers, integers)  # then they say nothing, and are ggml's all the same
    return head, integers.astype(np.uint8).reshape(-1, 256)


def _pack_six_bits(scales: Blocks, minimums: Blocks) -> Blocks:
    """Scales and minimums [n, 8] of six bits as twelve bytes."""
    first = scales[:, :4] | (scales[:, 4:] & 48) << 2
    second = minimums[:, :4] | (minimums[:, 4:] & 48) << 2
    third = (scales[:, 4:] & 15) | minimums[:, 4:] << 4
    return np.concatenate([first, second, third], axis=1)
