"""Distances between arrays, NaN and infinity included, in the memory of one more array."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
_NEIGHBOURS = 8  # tokens whose attention shares a spread


def distance(got: Array, expected: Array) -> Array:
    """|got - expected| in float64: 0 where both are NaN or the same infinity, infinity where only one of them is."""
    error = gap(got, expected)
    odd = ~np.isfinite(error)
    if odd.any():
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        error[odd] = np.where(same, 0, np.inf)[odd]
    return error


def gap(a: Array, b: Array) -> Array:
    """|a - b|, in one new float64 array: arrays of this size decide the memory of a check."""
    with np.errstate(all="ignore"):
        out = np.subtract(a, b, dtype=np.float64)
        return np.abs(out, out=out)


def largest_finite(x: Array) -> float:
    """The largest magnitude of the finite values; 0 if there are none."""
    low, high = float(x.min(initial=0)), float(x.max(initial=0))
    if np.isfinite(low) and np.isfinite(high):
        return max(-low, high)
    finite = x[np.isfinite(x)]
    return float(np.abs(finite).max(initial=0))


def pooled(spread: Array) -> Array:
    """The spread [heads, tokens, 1] of scores or weights, raised to the largest within each group of 8 tokens.

    A row of few keys has too few values for a spread of its own, and its neighbours are as uncertain.
    """
    starts = np.arange(0, spread.shape[1], _NEIGHBOURS)
    largest = np.maximum.reduceat(spread, starts, axis=1)
    return np.maximum(spread, np.repeat(largest, _NEIGHBOURS, axis=1)[:, : spread.shape[1]])
