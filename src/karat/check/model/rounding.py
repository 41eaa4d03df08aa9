"""Rounding to a narrower type."""

import numpy as np
from numpy.typing import NDArray

from karat.config import FloatName


def rounded(x: NDArray[np.floating], dtype: FloatName) -> NDArray[np.float64]:
    """`x` rounded to nearest even to `dtype`, in float64."""
    with np.errstate(all="ignore"):
        if dtype != "bfloat16":
            return x.astype(dtype).astype(np.float64)
        bits = x.astype(np.float32).view(np.uint32)
        upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(x), np.nan, upper.view(np.float32)).astype(np.float64)
