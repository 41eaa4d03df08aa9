"""A fused multiply-add of float32 numbers in NumPy: a * b + c with one rounding, for definitions of contracts."""

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

_CUT_BITS = np.int64((1 << 29) - 1)  # of a float64 that a normal float32 does not have
_MIDDLE = np.int64(1 << 28)  # what they are halfway between two neighbours


def fma(a: F32, b: F32, c: F32) -> F32:
    """a * b + c, rounded once, to nearest even; the arrays broadcast.

    The product is exact in float64; the sum is rounded there, and again to float32. Two roundings differ from one only
    where the first one ends halfway between two float32 numbers, or where the result is subnormal. There the sum is
    rounded to odd first: an inexact one gets an odd last bit, which no second rounding takes for half.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        product, addend = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
        total = np.asarray(product + addend)
        result = np.asarray(total.astype(np.float32))
        doubtful = (total.view(np.int64) & _CUT_BITS) == _MIDDLE
        doubtful |= np.abs(total) < np.finfo(np.float32).tiny
        if doubtful.any():
            one, other = (np.broadcast_to(part, total.shape)[doubtful] for part in (product, addend))
            result[doubtful] = _rounded_to_odd(one, other).astype(np.float32)
    return result


def _rounded_to_odd(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """one + other in float64; a sum that is not exact gets the odd one of its two neighbours."""
    total = one + other
    part = total - one
    error = (one - (total - part)) + (other - part)  # exact
    bits = total.view(np.int64)
    step = np.where((error > 0) == (total > 0), 1, -1)
    inexact = np.isfinite(total) & (error != 0) & ((bits & 1) == 0)
    odd: NDArray[np.float64] = np.where(inexact, bits + step, bits).view(np.float64)
    return odd
