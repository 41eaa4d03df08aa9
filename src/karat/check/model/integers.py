"""Activations as integers, by numeric contract 5 (karat.ops.integers): the numbers that a product multiplies.

Integers times their power are exact in float64. So a product of them in float64 differs from the engine's by the
engine's float roundings alone.
"""

import numpy as np
from numpy.typing import NDArray

from karat.ops.integers import BLOCK, WIDTHS, quantise

Array = NDArray[np.floating]


def as_integers(x: Array, activations: str) -> Array:
    """x [tokens, features] rounded to integers times powers; NaN where a block has no power."""
    found = quantise(x.astype(np.float32), WIDTHS[activations])
    powers = found.powers.astype(np.float64).repeat(BLOCK, axis=1)
    values: Array = (found.integers * powers).astype(x.dtype, copy=False)
    return values


def moved(x: Array, by: Array, activations: str) -> Array:
    """x [tokens, features] moved by `by` before it is rounded to integers, in its type.

    Where a block's largest value is what the power is made of, it stays: with it, all of the block would move, and a
    number near a tie that is nearly as large would not come to the tie's other side.
    """
    there = (x + by).astype(x.dtype, copy=False)
    if not WIDTHS[activations].by_maximum:
        return there
    sizes = np.abs(x).reshape(len(x), -1, BLOCK)
    is_largest = (sizes == sizes.max(axis=-1, keepdims=True)).reshape(x.shape)
    return np.where(is_largest, x, there)


def on_other_side(x: Array, by: Array, noisy: Array, activations: str) -> Array:
    """`noisy` [tokens, features] rounded to integers, but what is within `by` of a tie in x goes to its other side.

    Whatever has moved `noisy`: a number that noise before it takes away from its tie, by itself falls to either side.
    """
    right = as_integers(x, activations)
    up, down = (as_integers(moved(x, way * by, activations), activations) for way in (1, -1))
    other = np.where(up != right, up, down)
    return np.where(other != right, other, as_integers(noisy, activations))


def half_step(x: Array, activations: str) -> Array:
    """The largest error of that rounding for each value of x [tokens, features]."""
    powers = quantise(x.astype(np.float32), WIDTHS[activations]).powers.astype(np.float64)
    return np.nan_to_num(powers / 2).repeat(BLOCK, axis=1)
