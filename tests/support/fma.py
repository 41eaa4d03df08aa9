"""A fused multiply-add in NumPy, for the contracts of kernels."""

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def fma(a: F32, b: F32, c: F32) -> F32:
    """a * b + c with one rounding to float32.

    The product is exact in float64. Its sum with c is rounded to odd there (an inexact result gets an odd
    last bit), which leaves the second rounding, to float32, as if it were the only one.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
        total = np.asarray(product + addend)
        part = total - product
        error = (product - (total - part)) + (addend - part)
        bits = total.view(np.int64)
        even = (bits & 1) == 0
        step = np.where((error > 0) == (total > 0), 1, -1)
        odd = np.where(np.isfinite(total) & (error != 0) & even, bits + step, bits).view(np.float64)
        return odd.astype(np.float32)
