"""Numeric contract 5, defined: linear layers on block formats, with activations as block fixed point.

Kernels equal it, bit for bit; karat.ops.integer_reference computes by it.

**Activations.** A row is cut into blocks of 32 columns at absolute multiples of 32. A block is integers q and a power,
float32, of which they are multiples, rounded to nearest even. |q| is at most the width's `limit`.

- int16: the power is a power of two, the smallest at which the rounded maximum fits, from 2**-102 on. q is x / power,
  and products of powers are exact. The limit is the largest number that two signed bytes write with the same number
  negated.
- int8 and int24: a power of two would cost too much (docs/determinism.md), so power = max(max|x| / limit, 2**-102) and
  q = x / power, all in float32. Products with scales and with sums of q are rounded once. Three signed bytes write one
  more than int24's limit, which is even, so that a quotient half above it is rounded to it.
- Powers are at most 2**105. So power is normal, and scale * power is normal and finite for every stored scale other
  than zero: those are 2**-24 … 65,504 * 128 in magnitude. MXFP4's are 2**-128 … 2**127: the product may be any number
  there, infinity too. Elements below half a step are 0.
- A block whose q are all 0 has power 1.
- A block with NaN or infinity, or with a number so large that its power would be above 2**105, has NaN as its power and
  q = 0. Every output of that row is then NaN.

**Sums.** For each sub-block of 32 or 16 columns (karat.quant.CODINGS), in order within a leaf, from sum = 0:

    part = float32(Σ code · q)                                               int8, int16
    part = fma(float32(Σ code · top), 65536, float32(Σ code · (q - 65536 top)))     int24; top is q's highest digit
    sum  = fma(part, scale * power, sum)
    sum  = fma(float32(Σ q) * power, minimum, sum)                           in formats with minimums

Digits are signed bytes, -128 … 127. Sums in Σ are exact integers, so they may be made in any order and of any digits.
Then leaves are added as a binary tree, and the bias after the root, as in contract 4.

**Bounds.** |Σ code · q| is at most sub-block * largest code * limit; of int24's two sums the lower is the larger, with
32,896 instead of limit. All fit a signed integer of 32 bits (Q8_0's are the largest: 134,742,016). |Σ q| is below
2**28.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.weights import Weight
from karat.config import Activations
from karat.ops.fma import F32, fma
from karat.quant import CODINGS, FORMATS

BLOCK = 32  # columns
MIN_EXPONENT, MAX_EXPONENT = -102, 105  # of powers
_ROWS_AT_ONCE = 256  # of a matrix: what is computed of them stays in the cache


@dataclass(frozen=True, slots=True)
class Width:
    """How wide the integers of activations are: |q| is at most `limit`, which is below 2**`bits`.

    With `by_maximum` a block's power is max|x| / limit in float32, without it a power of two.
    """

    name: Activations
    bits: int
    limit: int
    by_maximum: bool = False


WIDTHS: Mapping[str, Width] = {
    width.name: width
    for width in (
        Width("int8", 7, 127, by_maximum=True),
        Width("int16", 15, 32_639),
        Width("int24", 23, 8_355_710, by_maximum=True),
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class Quantised:
    """Rows as integers: `integers` [rows, columns] and `powers` [rows, columns / 32]."""

    integers: NDArray[np.int32]
    powers: F32


@dataclass(frozen=True, slots=True, eq=False)
class CodedMatrix:
    """A matrix in a block format: codes [out, columns], scales and minimums [out, columns / sub_block]."""

    codes: NDArray[np.int8]
    scales: F32
    minimums: F32 | None
    sub_block: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    def __getitem__(self, rows: slice | NDArray[np.integer]) -> F32:
        """The values of some rows, float32 [rows, columns], as `Format.dequantize` gives them."""
        with np.errstate(all="ignore"):
            values: F32 = self.scales[rows].repeat(self.sub_block, axis=1) * self.codes[rows].astype(np.float32)
            if self.minimums is not None:
                values += self.minimums[rows].repeat(self.sub_block, axis=1)
        return values


def coded(weight: Weight) -> CodedMatrix:
    """A weight [out, columns] of a block format in karat.quant.CODINGS."""
    coding, format_ = CODINGS[weight.dtype], FORMATS[weight.dtype]
    with np.errstate(all="ignore"):  # scales in the bytes may be infinite or NaN
        codes, scales, minimums = coding.read(np.ascontiguousarray(weight.data.reshape(-1, format_.block_bytes)))
    rows = weight.shape[0]
    return CodedMatrix(
        codes.reshape(weight.shape),
        scales.reshape(rows, -1),
        None if minimums is None else minimums.reshape(rows, -1),
        coding.sub_block,
    )


def quantise(x: F32, width: Width) -> Quantised:
    """Rows [rows, columns] as integers; `columns` is a multiple of 32."""
    assert x.dtype == np.float32 and x.shape[1] % BLOCK == 0
    blocks = x.reshape(len(x), -1, BLOCK)
    with np.errstate(invalid="ignore"):
        largest = np.abs(blocks).max(axis=2, initial=0)  # NaN where a block has NaN
    numbers = np.isfinite(largest)
    safe = np.where(numbers, largest, np.float32(0))
    powers = _parts_of_maximum(safe, width) if width.by_maximum else _powers_of_two(safe, width)
    fits = numbers & (powers <= np.ldexp(1.0, MAX_EXPONENT))
    usable = np.where(fits[:, :, None], blocks, np.float32(0))
    # Divided by a power of two, a float32 is exact in float64; by another number the quotient is rounded to float32.
    wide = np.dtype(np.float32 if width.by_maximum else np.float64)
    integers = np.rint(usable.astype(wide) / powers[:, :, None].astype(wide)).astype(np.int32)
    powers = np.where((integers != 0).any(axis=2), powers, np.float32(1))
    return Quantised(integers.reshape(x.shape), np.where(fits, powers, np.float32(np.nan)).astype(np.float32))


def _powers_of_two(largest: F32, width: Width) -> F32:
    """The smallest power of two, from 2**-102 on, at which these numbers, rounded, are at most the limit."""
    _, exponents = np.frexp(largest)  # largest = fraction * 2**exponent, with a fraction of 1/2 … 1
    exponents = exponents - width.bits
    rounded = np.rint(np.ldexp(largest.astype(np.float64), -exponents))
    exponents = np.maximum(exponents + (rounded > width.limit), MIN_EXPONENT)
    powers: F32 = np.ldexp(np.float32(1), exponents)
    return powers


def _parts_of_maximum(largest: F32, width: Width) -> F32:
    powers: F32 = np.maximum(largest / np.float32(width.limit), np.ldexp(np.float32(1), MIN_EXPONENT))
    return powers


def linear(x: F32, matrix: CodedMatrix, width: Width, ends: Sequence[int]) -> F32:
    """x @ matrix.T without a bias: [rows, out]. `ends` are those of the leaves (karat.ops.leaves)."""
    leaves = leaf_sums(x, matrix, width, ends)
    with np.errstate(all="ignore"):
        while len(leaves) > 1:
            leaves = [left + right for left, right in zip(leaves[::2], leaves[1::2], strict=True)]
    return leaves[0]


def leaf_sums(x: F32, matrix: CodedMatrix, width: Width, ends: Sequence[int]) -> list[F32]:
    """The same of each leaf alone, before the tree."""
    quantised = quantise(x, width)
    found = [np.empty((len(x), matrix.shape[0]), np.float32) for _ in ends]
    with np.errstate(all="ignore"):
        for start in range(0, matrix.shape[0], _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            minimums = None if matrix.minimums is None else matrix.minimums[rows]
            part = CodedMatrix(matrix.codes[rows], matrix.scales[rows], minimums, matrix.sub_block)
            for out, leaf in zip(found, _leaves(quantised, part, width, ends), strict=True):
                out[:, rows] = leaf
    return found


def _leaves(x: Quantised, matrix: CodedMatrix, width: Width, ends: Sequence[int]) -> list[F32]:
    size = matrix.sub_block
    parts = _parts(x.integers, matrix, width)  # [sub-blocks, rows, out]
    powers = x.powers.repeat(BLOCK // size, axis=1)
    sums = _sums(x.integers, size) * powers if matrix.minimums is not None else None
    leaves = []
    for start, end in zip((0, *ends[:-1]), ends, strict=True):
        assert start % size == 0 and end % size == 0, "a leaf ends in a sub-block"
        total = np.zeros((len(powers), matrix.shape[0]), np.float32)
        for block in range(start // size, end // size):
            scales = powers[:, block, None] * matrix.scales[:, block]
            total = fma(parts[block], scales, total)
            if sums is not None and matrix.minimums is not None:
                total = fma(sums[:, block, None], matrix.minimums[:, block], total)
        leaves.append(total)
    return leaves


def _parts(integers: NDArray[np.int32], matrix: CodedMatrix, width: Width) -> F32:
    """`part` of each sub-block: [sub-blocks, rows, out]."""
    size = matrix.sub_block
    codes = matrix.codes.reshape(matrix.shape[0], -1, size).transpose(1, 2, 0).astype(np.float64)

    def exact(digits: NDArray[np.int32]) -> NDArray[np.float64]:
        # All partial sums are integers below 2**53, so float64 has them in any order.
        sums: NDArray[np.float64] = digits.reshape(len(digits), -1, size).swapaxes(0, 1).astype(np.float64) @ codes
        return sums

    if width.bits < 23:
        return exact(integers).astype(np.float32)
    top, lower = digits_of(integers)
    return fma(exact(top).astype(np.float32), np.array(65536, np.float32), exact(lower).astype(np.float32))


def digits_of(integers: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The highest of three signed bytes, and what the lower two write: integers = 65536 * highest + lower."""
    last = ((integers + 128) & 255) - 128
    rest = (integers - last) >> 8
    middle = ((rest + 128) & 255) - 128
    return (rest - middle) >> 8, 256 * middle + last


def _sums(integers: NDArray[np.int32], size: int) -> F32:
    """float32 of Σ q of each sub-block: [rows, sub-blocks]."""
    sums: F32 = integers.reshape(len(integers), -1, size).sum(axis=2, dtype=np.int32).astype(np.float32)
    return sums
