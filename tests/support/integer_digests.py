"""Digests of numeric contract 5's definition: SHA-256 of linear layers, by format and width (karat.ops.integers).

`python -m tests.support.integer_digests` prints the contents of tests/data/integer_digests.json. Kernels of any
instruction set must have these bits.
"""

import hashlib
import json
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.weights import Weight
from karat.ops.integers import WIDTHS, coded, linear
from karat.ops.leaves import leaf_ends
from karat.quant.codes import CODINGS
from tests.support.weights import random_blocks, weight_of

ROWS, COLUMNS, TOKENS = 37, 1024, 9
F32 = NDArray[np.float32]
Computed = Callable[[Weight, F32, tuple[int, ...], str], F32]
NAMES = ("int8", "int16", "int24")


def case(stored: str, seed: int) -> tuple[Weight, Weight, F32]:
    """Any finite blocks; a matrix of ordinary weights, if the format is written; rows of every kind."""
    rng = np.random.Generator(np.random.PCG64(seed))
    ordinary = rng.integers(-(2**20), 2**20, (ROWS, COLUMNS)).astype(np.float32) / 2**23
    x = rng.integers(-(2**20), 2**20, (TOKENS, COLUMNS)).astype(np.float32) / 2**18
    x[1] = np.ldexp(x[1], rng.integers(-20, 20, COLUMNS))  # far apart within a block
    x[2, 64:256] = 0
    x[3] = np.ldexp(x[3], -140)  # subnormal
    x[4] = np.ldexp(x[4], rng.integers(-60, 60, COLUMNS // 32).repeat(32))  # far apart between blocks
    x[5] = np.sign(x[5])  # every integer is the largest, or its negative
    x[6, 700] = np.nan
    x[7, 3] = -np.inf
    return random_blocks(stored, ROWS, COLUMNS, rng), weight_of(ordinary, stored), x


def by_definition(weight: Weight, x: F32, ends: tuple[int, ...], width: str) -> F32:
    return linear(x, coded(weight), WIDTHS[width], ends)


def digest(stored: str, width: str, computed: Computed = by_definition) -> str:
    """Of what `computed` makes of the case: of its results [TOKENS, ROWS] for both weights and both cuts of leaves."""
    found = hashlib.sha256()
    blocks, ordinary, x = case(stored, seed=sorted(CODINGS).index(stored))
    for weight in (blocks, ordinary):
        for ends in (leaf_ends(COLUMNS, None), leaf_ends(COLUMNS, 256)):
            out = computed(weight, x, ends, width)
            out = np.where(np.isnan(out), np.float32(np.nan), out)  # sign and payload are not promised
            found.update(np.ascontiguousarray(out, "<f4").tobytes())
    return found.hexdigest()


def all_digests() -> dict[str, dict[str, str]]:
    return {stored: {width: digest(stored, width) for width in NAMES} for stored in CODINGS}


if __name__ == "__main__":
    print(json.dumps(all_digests(), indent=1))
