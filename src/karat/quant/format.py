"""Format: how a block of values is stored, and the loops that convert whole tensors without a second copy in memory.

A row of a tensor is a row of blocks, and nothing lies between them:

    row 0   | block 0      | block 1      | …    row 1   | block 0      | …
            | block_bytes  | block_bytes  |
            | block_size   | block_size   |              block_size values each

The docstring of each format's file shows the bytes of its block. Integers of several bytes are little-endian; f16 is
IEEE binary16; "low" is bits 0-3 of a byte and "high" bits 4-7.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.errors import NumericsError

Blocks = NDArray[np.uint8]  # [n, block_bytes]
Values = NDArray[np.float32]  # [n, block_size]
Codes = NDArray[np.int8]
Parts = tuple[Codes, Values, Values | None]  # codes [n, block_size], scales and minimums [n, sub-blocks]

_CHUNK_VALUES = 1 << 16  # values converted at a time: intermediate arrays stay in the CPU's cache


@dataclass(frozen=True, slots=True)
class Coding:
    """Blocks as integers, as integer kernels read them: codes, with scales and minimums of their own.

    `read` takes blocks [n, block_bytes] apart; `sub_block` columns share a scale and, in formats with minimums, a
    minimum. Codes are `lowest` … `highest`: signed bytes. A value is scale * code + minimum in float32, with one
    rounding a step (without a minimum: scale * code). Where blocks `subtract` what they store as minimums, `read` gives
    these negated; a value is the same number, but for the sign of NaN.
    """

    read: Callable[[Blocks], Parts]
    sub_block: int
    lowest: int
    highest: int
    subtract: bool = False

    @property
    def largest(self) -> int:
        """The largest magnitude of a code."""
        return max(-self.lowest, self.highest)

    def values(self, blocks: Blocks) -> Values:
        """The values [n, block_size] of blocks [n, block_bytes]: `unpack` of a format that has codes."""
        codes, scales, minimums = self.read(blocks)
        values: Values = scales[:, :, None] * codes.reshape(*scales.shape, self.sub_block).astype(np.float32)
        if minimums is not None:
            values = values - -minimums[:, :, None] if self.subtract else values + minimums[:, :, None]
        return values.reshape(codes.shape)


@dataclass(frozen=True, slots=True)
class Format:
    """A way to store `block_size` consecutive values of a row in `block_bytes` bytes.

    `name` and `ggml_type` are GGUF's; ggml_type is None of a format that it does not have. `unpack` turns blocks
    [n, block_bytes] into values [n, block_size], both C-contiguous. `pack` is its inverse up to rounding, or None where
    Karat only reads the format. It takes finite values and may return infinite scales, which `quantize` refuses.
    Callers use `quantize` and `dequantize`. `coding` is None where there are no integer kernels for the format.
    """

    name: str
    ggml_type: int | None
    block_size: int
    block_bytes: int
    unpack: Callable[[Blocks], NDArray[np.floating]]
    pack: Callable[[Values], Blocks] | None = None
    coding: Coding | None = None

    def num_bytes(self, num_values: int) -> int:
        """Bytes of `num_values` values, a multiple of block_size."""
        assert num_values % self.block_size == 0
        return num_values // self.block_size * self.block_bytes

    def dequantize(self, blocks: Blocks, out: NDArray[np.floating] | None = None) -> NDArray[np.floating]:
        """The values [n, block_size] of blocks [n, block_bytes], in float32 arithmetic with one rounding a step.

        Those of E4M3 are exact, and rounded once where `out` is float32.

        Any bytes are legal. Infinite or NaN scales give infinite or NaN values. `out`, float32 or float64
        [n, block_size], receives the values if given.
        """
        assert blocks.dtype == np.uint8 and blocks.shape[1:] == (self.block_bytes,)
        if out is None:
            out = np.empty((len(blocks), self.block_size), np.float32)
        assert out.shape == (len(blocks), self.block_size)
        step = _CHUNK_VALUES // self.block_size
        with np.errstate(all="ignore"):  # scales in the bytes may be infinite or NaN
            for start in range(0, len(blocks), step):
                part = slice(start, start + step)
                out[part] = self.unpack(np.ascontiguousarray(blocks[part]))
        return out

    def quantize(self, values: NDArray[np.floating], out: Blocks | None = None) -> Blocks:
        """The blocks [n, block_bytes] of float32 values [n, block_size], as llama.cpp's reference quantiser makes them.

        `out` receives the blocks if given. Raises NumericsError for a value that is not finite, and for a block whose
        scale is beyond float16.
        """
        assert self.pack is not None, f"{self.name} is only read"
        assert values.dtype == np.float32 and values.shape[1:] == (self.block_size,)
        if out is None:
            out = np.empty((len(values), self.block_bytes), np.uint8)
        assert out.shape == (len(values), self.block_bytes)
        step = _CHUNK_VALUES // self.block_size
        for start in range(0, len(values), step):
            part = np.ascontiguousarray(values[start : start + step])
            if not np.isfinite(part).all():
                raise NumericsError(f"{_first(~np.isfinite(part), part, start)}, which {self.name} cannot store")
            with np.errstate(all="ignore"):
                out[start : start + step] = self.pack(part)
                back = self.unpack(out[start : start + step])
            if not np.isfinite(back).all():
                raise NumericsError(
                    f"{_first(~np.isfinite(back), part, start)}; its block is too large for the scales of {self.name}"
                )
        return out


def _first(lost: NDArray[np.bool_], values: Values, start: int) -> str:
    block, place = np.argwhere(lost)[0]
    return f"value {(start + block) * values.shape[1] + place} is {values[block, place]:.6g}"


def half(blocks: Blocks, start: int) -> Values:
    """The float16 numbers at byte `start` of each block, as float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def steps_above_minimum(values: Values, num_steps: int) -> tuple[Values, Values, Blocks]:
    """Scale [n, 1], minimum [n, 1] and integers [n, block_size]: 0 is the minimum, `num_steps` the maximum."""
    minimum = values.min(axis=1, keepdims=True)
    scale = (values.max(axis=1, keepdims=True) - minimum) / np.float32(num_steps)
    steps = (values - minimum) * inverted(scale) + np.float32(0.5)
    return scale, minimum, np.minimum(defined(steps).astype(np.uint8), np.uint8(num_steps))


def steps_around_zero(values: Values, num_steps: int) -> tuple[Values, Blocks]:
    """Scale [n, 1] and integers [n, block_size] from 0 to 2 * num_steps - 1; `num_steps` stands for zero.

    The value of largest magnitude (the first of equals) gets integer 0. The scale has the opposite sign of that value.
    """
    largest = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)
    scale = largest / np.float32(-num_steps)
    steps = values * inverted(scale) + np.float32(num_steps + 0.5)  # two roundings
    return scale, np.minimum(defined(steps).astype(np.uint8), np.uint8(2 * num_steps - 1))


def inverted(scale: Values) -> Values:
    """1 / scale; 0 where the scale is 0."""
    return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def defined(steps: Values) -> Values:
    """`steps` in place, with 0 for infinity and NaN: they come of scales below 2**-128, which are 0 in float16."""
    steps[~np.isfinite(steps)] = 0
    return steps


def half_bytes(numbers: Values) -> Blocks:
    """Numbers [n, 1] rounded to float16 (to nearest, ties to even), as bytes [n, 2]."""
    return numbers.astype("<f2").view(np.uint8)
