"""Blocks of activations of every kind that numeric contract 5 tells apart, for tests of it."""

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
KINDS = ("normal", "spread", "zero", "subnormal", "tiny", "huge", "largest", "nan", "inf")


def block_of(kind: str, rng: np.random.Generator) -> F32:
    """32 columns of one of KINDS."""
    block = rng.standard_normal(32).astype(np.float32)
    match kind:
        case "spread":
            block = np.ldexp(block, rng.integers(-40, 40, 32))
        case "zero":
            block[:] = 0
        case "subnormal":
            block = np.ldexp(block, -140)
        case "tiny":  # about where the smallest power begins
            block = np.ldexp(block, -102 + int(rng.integers(-3, 30)))
        case "huge":  # about where the largest power ends
            block = np.ldexp(block, int(rng.integers(108, 126)))
        case "largest":
            block[:] = np.finfo(np.float32).max * rng.choice([-1, 1], 32)
        case "nan":
            block[rng.integers(32)] = np.nan
        case "inf":
            block[rng.integers(32)] = rng.choice([-np.inf, np.inf])
    return block.astype(np.float32)


def rows_of_all_kinds(columns: int, rng: np.random.Generator) -> F32:
    """A row for each kind, in which one block is of that kind and others are normal; then one row with all kinds.

    [len(KINDS) + 1, columns]; NaN and infinity are in rows of their own.
    """
    finite = [kind for kind in KINDS if kind not in ("nan", "inf", "largest", "huge")]
    rows = []
    for kind in KINDS:
        kinds = ["normal"] * (columns // 32)
        kinds[rng.integers(len(kinds))] = kind
        rows.append(kinds)
    rows.append([finite[number % len(finite)] for number in range(columns // 32)])
    return np.stack([np.concatenate([block_of(kind, rng) for kind in kinds]) for kinds in rows])
