"""Blocks of a quantised tensor that no rounding of the original's values makes.

A quantiser puts each value on the nearest level of its block (`karat.check.files.block_levels`), so at most half a step
away, whatever scale it chose for the block. Quantisers choose scales in their own ways; a scale is certainly wrong only
if it leaves values far outside of all levels.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.check.files.block_levels import LAYOUTS, after_fit, misses, step_sizes
from karat.checkpoint.weights import Weight
from karat.quant import FORMATS

Array = NDArray[np.float64]
Blocks = NDArray[np.uint8]

_PART = 1 << 18  # values that are compared at a time
# Half a step, and a tenth of a step more: another order of float32 operations turns ties, and a file may have been
# float16 on the way to blocks (a number of Q8_0 is then off by up to 127 * 2**-11; a value below float16's normal
# numbers by up to half its least step).
NEAREST, LEAST_HALF_STEP = 0.6, 2.0**-25
# With an importance matrix ggml fits the scales of Q4_0, Q4_1, Q5_0 and Q5_1 after it has chosen the numbers. If
# importances differ by factors of exp(N(0, 1)), values are up to 0.93 steps away. If they differ more, at least 0.5 %
# of the blocks (and more than 5) are not nearest.
FITTED, WEIGHED_SHARE, WEIGHED_BLOCKS = 1.25, 0.005, 5
# After such a fit, values are at most 0.9 steps from what the best scale gives, 3.3 where a minimum is fitted too. The
# best scale is 0.7 to 4.5 times the stored one.
AFTER_FIT, FIT_RATIO = 4.0, 16.0
# A quantiser that does not round to nearest does so in every block: the limit is this many times the blocks' median.
OTHER_ROUNDING = 3.0
# How far an original may lie outside of the levels, in multiples of their range: 1.1 has been seen (Q2_K).
BEYOND = 4.0
# Formats with codebooks: the limit of a block's error over its size, and the limit in multiples of the error that 98 %
# of the tensor's blocks stay below (0.5 for trained weights in IQ1_S). A block of another place is 1.4 away.
RELATIVE, USUAL, USUAL_SHARE = 1.25, 2.0, 0.98
# Two things are no error in formats with codebooks: a value up to the smallest float16 factor times the largest number
# (IQ3_XXS), and whatever ggml leaves in a group of 16 zeros.
_LEAST_VALUE, _GROUP = 480 * 2.0**-24, 16
# If the original is quantised itself, its values may be off by this many of its steps: Q4_0 cuts by up to a whole one.
ORIGINAL = 1.25


@dataclass(frozen=True, slots=True)
class _BlockPart:
    """Blocks [n, block_bytes], the originals of their values [n, block_size], and how far each original may be off."""

    blocks: Blocks
    right: Array
    room: Array


def judges_values(stored: str) -> bool:
    """Whether single values of a block format are judged. With codebooks (IQ1, IQ2, IQ3) only whole blocks are."""
    return stored in LAYOUTS


def strange_block(weight: Weight, original: Weight, *, weighed: bool) -> str | None:
    """The worst block of a quantised tensor that no rounding of the original makes, in words; None: there is none.

    Both tensors have two axes of the same lengths. weighed: the file states that an importance matrix was used. Memory:
    8 bytes a block, and one part of the tensors.
    """
    parts = _Parts(weight, original)
    found = [_of_blocks(weight.dtype, part) for part in parts]
    steps, beyond = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    limit, is_fitted = _limit(weight.dtype, steps, weighed)
    severity = np.maximum(steps / limit, beyond / _limit_beyond(weight.dtype, beyond))
    suspects = np.flatnonzero(severity > 1)
    if not len(suspects):
        return None
    suspects = suspects[np.argsort(-severity[suspects], kind="stable")]
    if weighed or is_fitted:
        chunk = max(1, _PART // FORMATS[weight.dtype].block_size)
        for start in range(0, len(suspects), chunk):
            some = suspects[start : start + chunk]
            certain = some[_is_certain(weight.dtype, parts.of(some), limit if not is_fitted else np.inf, weighed)]
            if len(certain):
                return _told(weight, parts, certain, limit)
        return None
    return _told(weight, parts, suspects, limit)


class _Parts:
    """Two tensors side by side, a few blocks at a time."""

    def __init__(self, weight: Weight, original: Weight) -> None:
        self._format = FORMATS[weight.dtype]
        self._blocks = weight.data.reshape(-1, self._format.block_bytes)
        self._original, self._data = original, original.data
        self._columns = original.shape[-1]

    def __iter__(self) -> Iterator[_BlockPart]:
        step = max(1, _PART // self._columns)  # whole rows, so that blocks of both are whole
        for start in range(0, self._original.shape[0], step):
            rows = range(start, min(start + step, self._original.shape[0]))
            yield self._part(rows, slice(None))

    def of(self, numbers: NDArray[np.intp]) -> _BlockPart:
        """These blocks, counted from the first of the first row."""
        per_row = self._columns // self._format.block_size
        found = [
            self._part(range(n // per_row, n // per_row + 1), slice(n % per_row, n % per_row + 1)) for n in numbers
        ]
        return _BlockPart(
            *(np.concatenate(arrays) for arrays in zip(*((p.blocks, p.right, p.room) for p in found), strict=True))
        )

    def _part(self, rows: range, which: slice) -> _BlockPart:
        """Some blocks of rows."""
        size, row_bytes = self._format.block_size, self._original.num_bytes // self._original.shape[0]
        data = self._data[rows.start * row_bytes : rows.stop * row_bytes]
        shape = (len(rows), self._columns)
        piece = Weight(self._original.name, self._original.dtype, shape, data, self._original.file)
        right = piece.to_array(np.dtype(np.float64)).astype(np.float64, copy=False)
        room = np.full(shape, LEAST_HALF_STEP)
        if (other := FORMATS.get(piece.dtype)) is not None and piece.dtype in LAYOUTS:
            steps = step_sizes(piece.dtype, data.reshape(-1, other.block_bytes)).reshape(shape)
            room += ORIGINAL * steps
        per_row = self._columns // size
        blocks = self._blocks[rows.start * per_row : rows.stop * per_row].reshape(len(rows), per_row, -1)[:, which]
        right, room = (x.reshape(len(rows), per_row, size)[:, which].reshape(-1, size) for x in (right, room))
        return _BlockPart(blocks.reshape(-1, self._format.block_bytes), right, room)


def _of_blocks(stored: str, part: _BlockPart) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """For each block its largest `steps` and `beyond`; with codebooks, `beyond` is the block's relative error."""
    if stored in LAYOUTS:
        found = misses(stored, part.blocks, part.right, part.room)
        return found.steps.max(axis=1).astype(np.float32), found.beyond.max(axis=1).astype(np.float32)
    error, size = _errors(stored, part)
    with np.errstate(all="ignore"):
        relative = np.where(error > 0, error / size, 0)
    return np.zeros(len(error), np.float32), relative.astype(np.float32)


def _errors(stored: str, part: _BlockPart) -> tuple[Array, Array]:
    """Root sums of squares [n]: of the blocks' errors (doubled for a block of zeros), and of their originals."""
    values = FORMATS[stored].dequantize(part.blocks).astype(np.float64)
    off = np.maximum(np.abs(values - part.right) - part.room - _LEAST_VALUE, 0)
    off *= np.repeat(part.right.reshape(len(off), -1, _GROUP).any(axis=2), _GROUP, axis=1)
    is_nothing = ~values.any(axis=1)
    return np.sqrt((off * off).sum(axis=1)) * np.where(is_nothing, 2, 1), np.sqrt((part.right**2).sum(axis=1))


def _limit(stored: str, steps: NDArray[np.float32], weighed: bool) -> tuple[float, bool]:
    """How many steps rounding may move a value of this tensor, and whether scales were fitted after the numbers."""
    if stored in LAYOUTS and LAYOUTS[stored].chosen == "fitted":
        num_far = int(np.count_nonzero(steps > NEAREST))
        return FITTED, weighed or num_far > max(WEIGHED_BLOCKS, WEIGHED_SHARE * len(steps))
    median = float(np.median(steps))
    return (OTHER_ROUNDING * median if median > NEAREST else NEAREST), False


def _limit_beyond(stored: str, beyond: NDArray[np.float32]) -> float:
    """How far an original may lie outside of the levels; with codebooks, the largest relative error of rounding."""
    if stored in LAYOUTS:
        return BEYOND
    return max(RELATIVE, USUAL * float(np.quantile(beyond, USUAL_SHARE, method="lower")))


def _is_certain(stored: str, part: _BlockPart, limit: float, weighed: bool) -> NDArray[np.bool_]:
    """Which suspects no importance matrix explains."""
    if stored not in LAYOUTS:
        return np.ones(len(part.blocks), bool)
    found = misses(stored, part.blocks, part.right, part.room)
    steps, beyond = found.steps.max(axis=1), found.beyond.max(axis=1)
    values = FORMATS[stored].dequantize(part.blocks)
    is_one = values.min(axis=1) == values.max(axis=1)  # a block of one value fits any original
    certain: NDArray[np.bool_] = (steps > limit) | (beyond > BEYOND) & (is_one | (not weighed))
    if LAYOUTS[stored].chosen == "fitted":
        left, ratio = after_fit(stored, part.blocks, part.right)
        is_unlike = ~((ratio[:, 0] > 1 / FIT_RATIO) & (ratio[:, 0] < FIT_RATIO))
        certain |= (steps > FITTED) & ((left.max(axis=1) > AFTER_FIT) | is_unlike)
    return certain


def _told(weight: Weight, parts: _Parts, numbers: NDArray[np.intp], limit: float) -> str:
    """The first of these blocks, with its worst value, and how many there are."""
    size = FORMATS[weight.dtype].block_size
    row, column = divmod(int(numbers[0]) * size, weight.shape[-1])
    part = parts.of(numbers[:1])
    values = FORMATS[weight.dtype].dequantize(part.blocks)[0]
    more = f" ({len(numbers)} blocks are so)" if len(numbers) > 1 else ""
    where = f"row {row}, columns {column} to {column + size - 1}"
    if weight.dtype not in LAYOUTS:
        error, whole = _errors(weight.dtype, part)
        with np.errstate(all="ignore"):
            times = float(error[0] / whole[0])
        return f"{where}: {times:.3g} of its size away from the original's block{more}"
    found = misses(weight.dtype, part.blocks, part.right, part.room)
    steps, beyond = found.steps[0], found.beyond[0]
    by_steps = steps.max() / min(limit, FITTED) >= beyond.max() / BEYOND
    worst = int((steps if by_steps else beyond).argmax())
    if by_steps:
        how = f"{steps[worst]:.3g} steps of its block"
    elif np.isinf(beyond[worst]):
        how = "its block has one level"
    else:
        how = f"{beyond[worst]:.3g} times their range outside of the levels of its block"
    element = (
        f"element [{row}, {column + worst}] is {values[worst]:.6g}, and {part.right[0, worst]:.6g} in the original"
    )
    return f"{where}: {element} ({how}){more}"
