"""The levels that a block of quantised weights offers, and how far its values lie from those of an original.

A row of LAYOUTS says where a format's numbers lie, which levels they stand for and where its float16 scales are. The
values of the levels come from karat.quant, which reads the block with its numbers replaced. So a new format is a row.
Formats with codebooks (IQ1, IQ2, IQ3) have none: there a number stands for several values at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from karat.quant import FORMATS
from karat.quant.iq4_nl import LEVELS
from karat.quant.mxfp4 import TWICE

Array = NDArray[np.float64]
Blocks = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a block format keeps what its levels are made of.

    numbers          first byte of the numbers, and the byte after the last
    levels           rising, in steps of the block's scale
    halves           (byte, times): a float16 factor at `byte`; a value is up to `times` of it
    quanta           (byte, times): the smallest change of a sub-block's scale or minimum changes a value by up to
                     `times` of the factor at `byte`
    lowest, highest  the byte of numbers that stands for the first level, and for the last
    chosen           for which scale ggml chooses the numbers: the "stored" one; the one "before" float16 rounds it; or,
                     with an importance matrix, one that is "fitted" again after the numbers are chosen
    """

    numbers: tuple[int, int]
    levels: Array
    halves: tuple[tuple[int, int], ...] = ()
    quanta: tuple[tuple[int, int], ...] = ()
    lowest: int = 0x00
    highest: int = 0xFF
    chosen: Literal["stored", "before", "fitted"] = "before"


@dataclass(frozen=True, slots=True)
class Misses:
    """How far each value [n, size] is from its original, beyond what the rounding of the block's factors explains.

    steps   within the levels: the distance in steps, a step leading to the next level towards the original
    beyond  how far the original lies outside of all levels, in multiples of their range (infinite: one level only)
    """

    steps: Array
    beyond: Array


def _even(count: int) -> Array:
    return np.arange(count, dtype=np.float64)


_UNEVEN = LEVELS.astype(np.float64)
_FLOATS = np.unique(TWICE).astype(np.float64)

LAYOUTS: Mapping[str, Layout] = {
    "Q4_0": Layout((2, 18), _even(16), ((0, 8),), chosen="fitted"),
    "Q4_1": Layout((4, 20), _even(16), ((0, 15), (2, 1)), chosen="fitted"),
    "Q5_0": Layout((2, 22), _even(32), ((0, 16),), chosen="fitted"),
    "Q5_1": Layout((4, 24), _even(32), ((0, 31), (2, 1)), chosen="fitted"),
    "Q8_0": Layout((2, 34), _even(256), ((0, 128),), lowest=0x80, highest=0x7F),
    "Q2_K": Layout((16, 80), _even(4), ((80, 3 * 15), (82, 15)), ((80, 3), (82, 1)), chosen="stored"),
    "Q3_K": Layout((0, 96), _even(8), ((108, 4 * 32),), ((108, 4),), chosen="stored"),
    "Q4_K": Layout((16, 144), _even(16), ((0, 15 * 63), (2, 63)), ((0, 15), (2, 1)), chosen="stored"),
    "Q5_K": Layout((16, 176), _even(32), ((0, 31 * 63), (2, 63)), ((0, 31), (2, 1)), chosen="stored"),
    "Q6_K": Layout((0, 192), _even(64), ((208, 32 * 128),), ((208, 32),), chosen="stored"),
    "IQ4_NL": Layout((2, 18), _UNEVEN, ((0, 127),)),
    "IQ4_XS": Layout((8, 136), _UNEVEN, ((0, 127 * 32),), ((0, 127),)),
    "TQ1_0": Layout((0, 52), _even(3), ((52, 1),)),
    "TQ2_0": Layout((0, 64), _even(4), ((64, 2),)),
    "MXFP4": Layout((1, 17), _FLOATS, lowest=0xFF, highest=0x77),
    "NVFP4": Layout((4, 36), _FLOATS, lowest=0xFF, highest=0x77),
}


def misses(stored: str, blocks: Blocks, right: Array, room: Array) -> Misses:
    """Misses of blocks [n, block_bytes] beside their originals `right` [n, block_size]; up to `room` is no miss."""
    layout = LAYOUTS[stored]
    levels = layout.levels
    values, first, last = (_read(stored, blocks, fill) for fill in (None, layout.lowest, layout.highest))
    low, high = np.minimum(first, last), np.maximum(first, last)
    room = room + 2.0**-22 * np.maximum(np.abs(low), np.abs(high))  # float32, twice
    rounding = _rounding(layout, blocks)
    unit = (last - first) / (levels[-1] - levels[0])
    with np.errstate(all="ignore"):
        within = np.clip(right, low, high)
        place, target = (np.nan_to_num((x - first) / unit) + levels[0] for x in (values, within))
        nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, place)
        following = np.clip(nearest + np.where(target > place, 1, -1), 0, len(levels) - 1)
        gap = np.abs((levels[following] - levels[nearest]) * unit)
        off = np.abs(within - values) - room - (0 if layout.chosen == "stored" else rounding)
        outside = np.abs(right - within) - room - rounding - _quanta(layout, blocks)
        steps = np.where((off > 0) & (gap > 0), off / gap, 0.0)
        beyond = np.where(outside > 0, outside / (high - low), 0.0)
    return Misses(steps, beyond)


def step_sizes(stored: str, blocks: Blocks) -> Array:
    """The widest step [n, block_size] between two levels of each value's scale."""
    layout = LAYOUTS[stored]
    first, last = (_read(stored, blocks, fill) for fill in (layout.lowest, layout.highest))
    widest = np.diff(layout.levels).max() / (layout.levels[-1] - layout.levels[0])
    size: Array = np.abs(last - first) * widest
    return size


def _read(stored: str, blocks: Blocks, fill: int | None) -> Array:
    """Values, with all bytes of the numbers replaced by `fill`."""
    format_ = FORMATS[stored]
    if fill is not None:
        blocks = blocks.copy()
        blocks[:, slice(*LAYOUTS[stored].numbers)] = fill
    return format_.dequantize(blocks, out=np.empty((len(blocks), format_.block_size)))  # type: ignore[return-value]


def _rounding(layout: Layout, blocks: Blocks) -> Array:
    """What storing the float16 factors may move a value by, [n, 1]: a unit in the last place, so cut ones are fine."""
    moved = np.zeros((len(blocks), 1))
    for at, times in layout.halves:
        moved += times * np.maximum(np.abs(_half(blocks, at)) * 2.0**-10, 2.0**-24)
    return moved


def _quanta(layout: Layout, blocks: Blocks) -> Array:
    """What one more or less of the sub-blocks' integers moves a value by, [n, 1]."""
    moved = np.zeros((len(blocks), 1))
    for at, times in layout.quanta:
        moved += times * np.abs(_half(blocks, at))
    return moved


def _half(blocks: Blocks, at: int) -> Array:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float64)


def after_fit(stored: str, blocks: Blocks, right: Array) -> tuple[Array, Array]:
    """As if the scale (and the minimum, where there is one) were fitted to the numbers: how far values are then.

    Of values [n, size] that are between levels: their steps to the fitted ones, [n, size]; and the fitted scale in
    multiples of the stored one, [n, 1].
    """
    layout = LAYOUTS[stored]
    values, first, last = (_read(stored, blocks, fill) for fill in (None, layout.lowest, layout.highest))
    top = len(layout.levels) - 1
    with np.errstate(all="ignore"):
        numbers = np.rint(np.nan_to_num((values - first) / (last - first)) * top)
        is_end = (numbers <= 0) | (numbers >= top)
        has_minimum = len(layout.halves) > 1
        x, y = right, numbers - (0 if has_minimum else (top + 1) // 2)
        if has_minimum:
            x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
        scale = (x * y).sum(axis=1, keepdims=True) / (y * y).sum(axis=1, keepdims=True)
        steps = np.where(is_end, 0, np.abs(x - scale * y) / np.abs(scale))
        ratio = scale * top / (last - first)[:, :1]
    return np.nan_to_num(steps), ratio
