"""Blocks of quantised weights read wrongly: other bytes for the right reader, or another sum of what it reads.

The tables say where the fields of a format lie (ggml-common.h). karat.quant reads them. A new format is a line in the
tables.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes import six_bits
from karat.check.mistakes.catalogue import Bug
from karat.checkpoint.weights import Weight
from karat.quant import FORMATS

BUGS: Mapping[str, Bug] = {
    "quant-nibbles": Bug(
        "the bits of quantised numbers are put together wrongly",
        "within a run of bytes the low nibbles are the first half of the numbers, the high ones the second; upper bits "
        "that are kept apart (Q5, Q3_K, Q6_K) belong to them",
    ),
    "quant-zero": Bug(
        "quantised numbers have the wrong offset",
        "subtract 8 (4 bits), 16 (5 bits), 32 (6 bits); bytes of Q8_0 are signed",
    ),
    "quant-min-sign": Bug(
        "the minimum of quantised blocks is not applied as it should be",
        "Q4_1 and Q5_1 add it, Q2_K, Q4_K and Q5_K subtract it",
    ),
    "quant-scale": Bug(
        "quantised numbers have the scale of another block, or a scale unpacked wrongly",
        "each block and sub-block has its own scale; 6-bit scales keep their upper bits apart, and those of Q3_K and "
        "IQ4_XS are 32 too large; those of Q6_K are signed",
    ),
}

Values = NDArray[np.float32]

# Nibbles: the first byte, the end, and the bytes of one run. A run has the low nibbles first, then the high ones.
_NIBBLES: Mapping[str, tuple[int, int, int]] = {
    "Q4_0": (2, 18, 16),
    "Q4_1": (4, 20, 16),
    "Q5_0": (6, 22, 16),
    "Q5_1": (8, 24, 16),
    "IQ4_NL": (2, 18, 16),
    "IQ4_XS": (8, 136, 16),
    "MXFP4": (1, 17, 16),
    "Q4_K": (16, 144, 32),
    "Q5_K": (48, 176, 32),
}
# Low bits of the numbers: the first byte, the end, a byte in which each number is one, the offset to subtract.
_OFFSETS: Mapping[str, tuple[int, int, int, int]] = {
    "Q4_0": (2, 18, 0x11, 8),
    "Q5_0": (6, 22, 0x11, 16),
    "Q6_K": (0, 128, 0x11, 32),
    "Q3_K": (32, 96, 0x55, 4),
}
# All bits of the numbers: the first byte, the end. With zeros there, the value is the minimum.
_MINIMA: Mapping[str, tuple[int, int]] = {
    "Q4_1": (4, 20),
    "Q5_1": (4, 24),
    "Q2_K": (16, 80),
    "Q4_K": (16, 144),
    "Q5_K": (16, 176),
}
# The scale of a block, with its minimum: the first byte, the end. Then the scales of sub-blocks, a byte each.
_SCALES: Mapping[str, tuple[int, int]] = {
    "Q4_0": (0, 2),
    "Q4_1": (0, 4),
    "Q5_0": (0, 2),
    "Q5_1": (0, 4),
    "Q8_0": (0, 2),
    "IQ4_NL": (0, 2),
    "Q2_K": (80, 84),
    "Q3_K": (108, 110),
    "Q4_K": (0, 4),
    "Q5_K": (0, 4),
    "Q6_K": (208, 210),
    "IQ4_XS": (0, 2),
    "MXFP4": (0, 1),
}
_SUB_SCALES: Mapping[str, tuple[int, int]] = {"Q2_K": (0, 16), "Q6_K": (192, 208)}
# The upper bits of the numbers, which some formats keep apart: the first byte, the end.
_UPPER_BITS: Mapping[str, tuple[int, int]] = {
    "Q5_0": (2, 6),
    "Q5_1": (4, 8),
    "Q3_K": (0, 32),
    "Q5_K": (16, 48),
    "Q6_K": (128, 192),
}
_SIGNED_SIX_BITS = ("Q3_K", "IQ4_XS")  # their scales are stored 32 too large


def mistakes(stored: str) -> Iterator[tuple[str, str, str]]:
    """(how, bug, detail) of each way to read a block format wrongly."""
    if stored in _NIBBLES:
        yield "nibbles exchanged", "quant-nibbles", f"{stored}: high nibbles come first"
        yield "nibbles in turn", "quant-nibbles", f"{stored}: the two nibbles of a byte are neighbours"
    if stored in _UPPER_BITS:
        yield "upper bits", "quant-nibbles", f"{stored}: the upper bits, which are kept apart, are ignored"
    if stored in _OFFSETS:
        offset = _OFFSETS[stored][3]
        yield f"offset: {offset}", "quant-zero", f"{stored}: {offset} is not subtracted"
        for less in (1, -1):
            yield f"offset: {less}", "quant-zero", f"{stored}: {offset - less} is subtracted instead of {offset}"
    if stored == "Q8_0":
        yield "unsigned", "quant-zero", f"{stored}: the bytes are read as unsigned"
    if stored in _MINIMA:
        yield "minimum: 2", "quant-min-sign", f"{stored}: the minimum has the wrong sign"
        yield "minimum: 1", "quant-min-sign", f"{stored}: the minimum is left out"
    if stored in _SCALES:
        for by, where in ((1, "before"), (-1, "after")):
            yield f"scale: {by}", "quant-scale", f"{stored}: each block has the scale of the one {where}"
    if stored in _SUB_SCALES:
        for by, where in ((1, "before"), (-1, "after")):
            yield f"sub-scale: {by}", "quant-scale", f"{stored}: each sub-block has the scale of the one {where}"
    if stored == "Q6_K":
        yield "unsigned scales", "quant-scale", f"{stored}: the bytes of the scales are read as unsigned"
    if stored in six_bits.PLACES:
        for by, where in ((1, "before"), (-1, "after")):
            yield f"six bits: {by}", "quant-scale", f"{stored}: each sub-block has the scale of the one {where}"
        if stored in _SIGNED_SIX_BITS:
            yield "six bits, low", "quant-scale", f"{stored}: the upper bits of the scales are dropped"
            yield "six bits, unsigned", "quant-scale", f"{stored}: 32 is not subtracted from the scales"
        else:
            yield "six bits", "quant-scale", f"{stored}: the upper bits of the last four scales and minima are dropped"


def misread(weight: Weight, how: str) -> Values:
    """Values [*shape] of a tensor of blocks, read in the way `how`. A format without that way is read rightly."""
    format_ = FORMATS[weight.dtype]
    blocks = weight.data.reshape(-1, format_.block_bytes)
    if how in {known for known, _, _ in mistakes(weight.dtype)}:
        values = _misread(weight.dtype, blocks, how)
    else:
        values = format_.dequantize(blocks)
    return values.astype(np.float32, copy=False).reshape(weight.shape)


def _misread(stored: str, blocks: NDArray[np.uint8], how: str) -> NDArray[np.floating]:
    read = FORMATS[stored].dequantize
    kind, _, by = how.partition(": ")
    changed = blocks.copy()
    match kind:
        case "nibbles exchanged":
            first, last, _ = _NIBBLES[stored]
            changed[:, first:last] = (blocks[:, first:last] >> 4) | (blocks[:, first:last] << 4)
            return read(changed)
        case "nibbles in turn":
            first, last, run = _NIBBLES[stored]
            runs = blocks[:, first:last].reshape(len(blocks), -1, run)
            stream = np.stack((runs & 15, runs >> 4), axis=-1).reshape(*runs.shape[:2], 2 * run)
            changed[:, first:last] = (stream[..., :run] | (stream[..., run:] << 4)).reshape(len(blocks), -1)
            return read(changed)
        case "offset":
            first, last, ones, _ = _OFFSETS[stored]
            changed[:, first:last] = ones
            step = read(changed)
            changed[:, first:last] = 0
            return read(blocks) + np.float32(int(by)) * (step - read(changed))
        case "unsigned":
            changed[:, 2:] = 1
            return read(blocks) + np.float32(256) * read(changed) * (blocks[:, 2:] > 127)
        case "minimum":
            first, last = _MINIMA[stored]
            changed[:, first:last] = 0
            return read(blocks) - np.float32(int(by)) * read(changed)
        case "scale":
            first, last = _SCALES[stored]
            changed[:, first:last] = np.roll(blocks[:, first:last], int(by), axis=0)
            return read(changed)
        case "sub-scale":
            first, last = _SUB_SCALES[stored]
            changed[:, first:last] = np.roll(blocks[:, first:last], int(by), axis=1)
            return read(changed)
        case "upper bits":
            first, last = _UPPER_BITS[stored]
            changed[:, first:last] = 0
            return read(changed)
        case "unsigned scales":
            first, last = _SUB_SCALES[stored]
            negative = np.repeat(blocks[:, first:last] > 127, 16, axis=1)
            changed[:, first:last] = 1
            return read(blocks) + np.float32(256) * read(changed) * negative
        case "six bits" if by:
            scales = six_bits.taken(stored, blocks).reshape(len(blocks), -1, 16 if stored == "Q3_K" else 8)
            return read(six_bits.put(stored, blocks, np.roll(scales, int(by), axis=2).reshape(len(blocks), -1)))
        case "six bits":
            changed[:, 4:12] &= 0x3F
            return read(changed)
        case "six bits, low":
            return read(six_bits.put(stored, blocks, six_bits.taken(stored, blocks) & np.uint8(15)))
        case "six bits, unsigned":
            one = np.full((len(blocks), len(six_bits.PLACES[stored])), 33, np.uint8)
            return read(blocks) + np.float32(32) * read(six_bits.put(stored, blocks, one))
    raise AssertionError(how)
