"""ggml's rounding of the inputs of a matrix product, to fit the stored type of the weight (vec_dot_type).

    weight                       inputs become
    block format of 32 values    8-bit integers in blocks of 32 (Q8_0, Q8_1)
    block format of 256 values   8-bit integers in blocks of 256 (Q8_K)
    f16, bf16                    the same type
    f32                          unchanged

The largest magnitude of a block becomes 127.
"""

import numpy as np
from numpy.typing import NDArray

from karat.quant import FORMATS

Array = NDArray[np.floating]


def half_step(x: Array, stored: str) -> Array | None:
    """The largest error of rounding for each value of x [tokens, features]; None if nothing is rounded."""
    if stored in ("F16", "BF16"):
        return np.abs(x) * (2.0**-11 if stored == "F16" else 2.0**-8)
    if (format_ := FORMATS.get(stored)) is None:
        return None
    blocks = x.reshape(len(x), -1, format_.block_size)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    return np.broadcast_to(largest / 254, blocks.shape).reshape(x.shape)
