"""Readers of quantised blocks that can go wrong, written after ggml's C: nothing of karat.quant or karat.check is used.

Each turns blocks [n, bytes] into values [n, block size]; without options it is right.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.uint8]
Values = NDArray[np.float32]

SIZES = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"), 32),
    **dict.fromkeys(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"), 256),
}
_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def _half(blocks: Blocks, at: int) -> Values:
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _fours(packed: Blocks, order: str) -> Blocks:
    low, high = packed & 15, packed >> 4
    match order:
        case "halves":
            return np.concatenate((low, high), axis=1)
        case "high first":
            return np.concatenate((high, low), axis=1)
        case _:
            return np.stack((low, high), axis=2).reshape(len(packed), -1)


def _fifths(packed: Blocks, upper: bool) -> Blocks:
    """16 where the bit of a number in a 32-bit word is set."""
    if not upper:
        return np.zeros((len(packed), 32), np.uint8)
    word = packed.copy().view("<u4").astype(np.int64)
    return np.stack([(word[:, 0] >> i & 1) << 4 for i in range(32)], axis=1).astype(np.uint8)


def q4_0(b: Blocks, order: str = "halves", offset: float = 8, shift: int = 0) -> Values:
    return (_fours(b[:, 2:18], order).astype(np.float32) - np.float32(offset)) * np.roll(_half(b, 0), shift, axis=0)


def q4_1(b: Blocks, order: str = "halves", sign: float = 1, shift: int = 0) -> Values:
    d, m = (np.roll(_half(b, at), shift, axis=0) for at in (0, 2))
    return _fours(b[:, 4:20], order).astype(np.float32) * d + np.float32(sign) * m


def q5_0(b: Blocks, order: str = "halves", offset: float = 16, shift: int = 0, upper: bool = True) -> Values:
    q = _fours(b[:, 6:22], order) | _fifths(b[:, 2:6], upper)
    return (q.astype(np.float32) - np.float32(offset)) * np.roll(_half(b, 0), shift, axis=0)


def q5_1(b: Blocks, order: str = "halves", sign: float = 1, shift: int = 0, upper: bool = True) -> Values:
    d, m = (np.roll(_half(b, at), shift, axis=0) for at in (0, 2))
    q = _fours(b[:, 8:24], order) | _fifths(b[:, 4:8], upper)
    return q.astype(np.float32) * d + np.float32(sign) * m


def q8_0(b: Blocks, signed: bool = True, shift: int = 0) -> Values:
    q = b[:, 2:].view(np.int8) if signed else b[:, 2:]
    return q.astype(np.float32) * np.roll(_half(b, 0), shift, axis=0)


def iq4_nl(b: Blocks, order: str = "halves", shift: int = 0) -> Values:
    return _LEVELS[_fours(b[:, 2:18], order)] * np.roll(_half(b, 0), shift, axis=0)


def mxfp4(b: Blocks, order: str = "halves", shift: int = 0) -> Values:
    scale = np.ldexp(np.float32(1), np.roll(b[:, :1], shift, axis=0).astype(np.int32) - 127)
    return _E2M1[_fours(b[:, 1:17], order)] * scale


def iq4_xs(
    b: Blocks, order: str = "halves", shift: int = 0, sub_shift: int = 0, whole: bool = True, less: int = 32
) -> Values:
    """Eight sub-blocks of 32; of their scales the low halves in bytes 4 to 7, the high bits in one word before."""
    d = np.roll(_half(b, 0), shift, axis=0)[:, 0]
    high = b[:, 2:4].copy().view("<u2").astype(np.int64)[:, 0]
    out = np.empty((len(b), 256), np.float32)
    for j in range(8):
        at = (j - sub_shift) % 8
        scale = (b[:, 4 + at // 2].astype(np.int64) >> 4 * (at % 2)) & 15
        if whole:
            scale |= ((high >> 2 * at) & 3) << 4
        q = _LEVELS[_fours(b[:, 8 + 16 * j : 24 + 16 * j], order)]
        out[:, 32 * j : 32 * j + 32] = (d * (scale - less))[:, None] * q
    return out


def _scales_of_k(packed: NDArray[np.int64], j: int, whole: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Scale and minimum of sub-block j from the twelve bytes."""
    if j < 4:
        return packed[:, j] & 63, packed[:, j + 4] & 63
    scale, least = packed[:, j + 4] & 15, packed[:, j + 4] >> 4
    if whole:
        scale, least = scale | packed[:, j - 4] >> 6 << 4, least | packed[:, j] >> 6 << 4
    return scale, least


def q4_k(
    b: Blocks,
    order: str = "halves",
    sign: float = 1,
    shift: int = 0,
    whole: bool = True,
    sub_shift: int = 0,
    upper: bool | None = None,
    at: int = 16,
) -> Values:
    """Eight sub-blocks of 32; sub-blocks 2j and 2j + 1 are the low and the high nibbles of 32 bytes.

    upper: whether fifth bits (bit j of 32 bytes from byte 16 on) are used; None: there are none.
    """
    d, low = (np.roll(_half(b, place), shift, axis=0)[:, 0] for place in (0, 2))
    packed = b[:, 4:16].astype(np.int64)
    out = np.empty((len(b), 256), np.float32)
    for j in range(8):
        scale, least = _scales_of_k(packed, (j - sub_shift) % 8, whole)
        run = b[:, at + 32 * (j // 2) : at + 32 + 32 * (j // 2)]
        q = _fours(run, order)[:, 32 * (j % 2) : 32 * (j % 2) + 32]
        if upper:
            q = q | (b[:, 16:48] >> j & 1) << 4
        minimum = np.float32(sign) * (low * least)[:, None]
        out[:, 32 * j : 32 * j + 32] = (d * scale)[:, None] * q.astype(np.float32) - minimum
    return out


def q5_k(b: Blocks, upper: bool = True, **options: Any) -> Values:
    return q4_k(b, upper=upper, at=48, **options)


def q2_k(b: Blocks, sign: float = 1, shift: int = 0, sub_shift: int = 0) -> Values:
    """Sixteen sub-blocks of 16, whose scale and minimum share a byte."""
    d, low = (np.roll(_half(b, at), shift, axis=0) for at in (80, 82))
    scales = np.roll(b[:, :16], sub_shift, axis=1)
    runs = (b[:, 16:48], b[:, 48:80])
    q = np.concatenate([run >> 2 * part & 3 for run in runs for part in range(4)], axis=1).astype(np.float32)
    minimum = np.float32(sign) * np.repeat(low * (scales >> 4), 16, axis=1)
    return q * np.repeat(d * (scales & 15), 16, axis=1) - minimum


def q3_k(
    b: Blocks,
    offset: float = 4,
    shift: int = 0,
    sub_shift: int = 0,
    upper: bool = True,
    whole: bool = True,
    less: int = 32,
) -> Values:
    """Sixteen sub-blocks of 16; the scales as ggml's C takes them out of three 32-bit words."""
    words = b[:, 96:108].copy().view("<u4").astype(np.int64)
    high = words[:, 2] if whole else np.zeros(len(b), np.int64)
    first = [(words[:, i] & 0x0F0F0F0F) | ((high >> 2 * i) & 0x03030303) << 4 for i in range(2)]
    second = [(words[:, i] >> 4 & 0x0F0F0F0F) | ((high >> 4 + 2 * i) & 0x03030303) << 4 for i in range(2)]
    scales = np.stack(first + second, axis=1).astype("<u4").view(np.uint8).astype(np.int64) - less
    scales = np.roll(scales, sub_shift, axis=1)
    parts = []
    for half in range(2):
        for part in range(4):
            q = (b[:, 32 + 32 * half : 64 + 32 * half] >> 2 * part) & 3
            parts.append(q | (b[:, :32] >> (4 * half + part) & 1) << 2 if upper else q)
    values = np.concatenate(parts, axis=1).astype(np.float32) - np.float32(offset)
    return values * np.repeat(np.roll(_half(b, 108), shift, axis=0) * scales, 16, axis=1).astype(np.float32)


def q6_k(
    b: Blocks, offset: float = 32, shift: int = 0, sub_shift: int = 0, upper: bool = True, signed: bool = True
) -> Values:
    """Sixteen sub-blocks of 16, each with a signed byte as scale."""
    d = np.roll(_half(b, 208), shift, axis=0)
    stored = b[:, 192:208].view(np.int8) if signed else b[:, 192:208]
    scales = np.roll(stored, sub_shift, axis=1).astype(np.float32)
    low, high = b[:, :128].reshape(-1, 2, 64), b[:, 128:192].reshape(-1, 2, 32)
    parts = []
    for half in range(2):
        ql, qh = low[:, half], high[:, half]
        for part in range(4):
            nibble = ql[:, 32 * (part % 2) : 32 * (part % 2) + 32]
            nibble = nibble >> 4 if part > 1 else nibble & 15
            parts.append(nibble | (((qh >> (2 * part)) & 3) << 4) if upper else nibble)
    q = np.concatenate(parts, axis=1).astype(np.float32) - np.float32(offset)
    return q * np.repeat(d * scales, 16, axis=1)


READERS: dict[str, Callable[..., Values]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    "MXFP4": mxfp4,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}
