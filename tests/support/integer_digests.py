"""Digests of numeric contract 5's definition (karat.ops.integers): linear layers, by format and width.

`python -m tests.support.integer_digests` prints the contents of tests/data/integer_digests.txt. Kernels of any
instruction set must have these bits: tests/ops/test_integer_kernels.py asks those of the extension, and
tests/native/integer_digest.cpp, which makes the same matrices and rows without NumPy, those of any other build.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.weights import Weight
from karat.ops.integers import WIDTHS, coded, linear
from karat.ops.leaves import leaf_ends
from karat.quant import CODINGS, FORMATS
from tests.support.extreme_codes import EXPONENTS, HALVES

F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]
Computed = Callable[[Weight, F32, tuple[int, ...], str], F32]

DATA = Path(__file__).parents[1] / "data" / "integer_digests.txt"
NAMES = ("int8", "int16", "int24")
ROWS, COLUMNS, TOKENS = 82, 512, 24  # panels of 64 and of 16 rows, the last of them two rows
RANDOM_ROWS = 70  # those after them have extreme codes
ODD_ENDS = (32, 160, 416, COLUMNS)  # of leaves, in formats whose blocks allow it


def random(seed: int, count: int) -> U32:
    """Number i is a mix of the bits of i and the seed: the same in any language."""
    x = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(seed * 0x85EBCA6B & 0xFFFFFFFF)
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x21F0AAAD)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x735A2D97)
    return x ^ x >> np.uint32(15)


def matrix(stored: str) -> Weight:
    """Blocks of any bytes; then rows of one byte and of two, of the lowest and the highest codes. Scales are small."""
    format_ = FORMATS[stored]
    blocks = ROWS * COLUMNS // format_.block_size
    data = (random(1, blocks * format_.block_bytes) >> np.uint32(11)).astype(np.uint8).reshape(ROWS, -1)
    for row in range(RANDOM_ROWS, ROWS):
        first, second = (0x00, 0xFF) if row % 2 else (0x80, 0x77 if stored in EXPONENTS else 0x7F)
        choice = data[row] < 128 if row < ROWS - 4 else np.full(data.shape[1], row < ROWS - 2)
        data[row] = np.where(choice, first, second)
    data = data.reshape(blocks, -1)
    for number, start in enumerate(HALVES[stored]):
        of = random(2 + number, blocks)
        halves = (
            of & np.uint32(0x8000) | (8 + of % np.uint32(3)) << np.uint32(10) | of >> np.uint32(20) & np.uint32(1023)
        )
        data[:, start : start + 2] = halves.astype("<u2")[:, None].view(np.uint8)
    for start in EXPONENTS.get(stored, ()):
        data[:, start] = 120 + random(2, blocks) % np.uint32(16)
    return Weight("weight", stored, (ROWS, COLUMNS), data.reshape(-1), Path("in-memory"))


def activations(width: str) -> F32:
    """[TOKENS, COLUMNS]: ordinary rows, rows of every kind of block, and rows whose digits are all at an extreme."""
    of = random(11, TOKENS * COLUMNS).reshape(TOKENS, COLUMNS)
    signed = (of.view(np.int32) >> 8).astype(np.float32)
    x = signed / np.float32(2**20)
    largest = np.arange(COLUMNS) // 32 % 8 + 94 + WIDTHS[width].bits
    x[3] = np.ldexp(x[3], largest)  # powers up to the largest
    x[4] = np.ldexp(x[4], (of[4] % 40).astype(np.int32) - 20)  # far apart within a block
    x[5, 64:256] = 0
    x[6] = np.ldexp((of[6] % 255).astype(np.float32) - 127, -149)  # subnormal
    x[7] = np.ldexp(x[7], (np.arange(COLUMNS) // 32 * 7 % 120) - 60)  # far apart between blocks
    x[8, 300] = np.nan
    x[9, 3] = -np.inf
    x[10, 77] = 3e38  # its power would be too large
    x[11] = np.ldexp(x[11], -100)  # at the smallest power
    num_digits, limit = NAMES.index(width) + 1, WIDTHS[width].limit
    for token in range(12, TOKENS):
        q = np.where(of[token] & 1, 127, -127).astype(np.int64)
        for digit in range(1, num_digits):
            q = 256 * q + np.where(of[token] >> np.uint32(digit) & 1, 127, -128)
        if token < 14:
            q = np.full(COLUMNS, limit if token == 12 else -limit)
        q[7::32] = limit  # so that the power is 1
        x[token] = np.clip(q, -limit, limit)
    return x


def by_definition(weight: Weight, x: F32, ends: tuple[int, ...], width: str) -> F32:
    return linear(x, coded(weight), WIDTHS[width], ends)


def digest(stored: str, width: str, computed: Computed = by_definition) -> str:
    """Of what `computed` makes of the case [TOKENS, ROWS], in one leaf, in eight, some of them empty, and in four of an
    odd number of blocks: 64-bit FNV-1a over the bits of its numbers.
    """
    weight, x = matrix(stored), activations(width)
    found = 0xCBF29CE484222325
    unit = FORMATS[stored].block_size
    odd = tuple(end // unit * unit for end in ODD_ENDS)
    for ends in (leaf_ends(COLUMNS, None), leaf_ends(COLUMNS, unit), odd):
        out = computed(weight, x, ends, width)
        bits = np.where(np.isnan(out), np.uint32(0x7FC00000), out.view(np.uint32))  # a NaN's sign and payload: any
        for number in bits.reshape(-1).tolist():
            found = (found ^ number) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{found:016x}"


def stated() -> dict[tuple[str, str], str]:
    """The digests in DATA, by format and width."""
    lines = [line.split() for line in DATA.read_text(encoding="utf-8").splitlines()]
    return {(stored, width): found for stored, width, found in lines}


if __name__ == "__main__":
    for stored in sorted(CODINGS):
        for width in NAMES:
            print(stored, width, digest(stored, width))
