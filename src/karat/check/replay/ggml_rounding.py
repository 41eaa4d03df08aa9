"""What ggml does to the inputs of a matrix product: rounded to fit the stored type of the weight (vec_dot_type).

With block formats of 32 values they become 8-bit integers in blocks of 32 (Q8_0, Q8_1), with those of 256 in blocks of
256 (Q8_K), each with the largest magnitude of its block as 127; with f16 and bf16 they become that type; with f32 they
stay.
"""

import numpy as np
from numpy.typing import NDArray

from karat.quant import FORMATS

Array = NDArray[np.floating]


def half_step(x: Array, stored: str) -> Array | None:
    """How far rounding takes each value of x [tokens, features], at most; None where nothing is rounded."""
    if stored in ("F16", "BF16"):
        return np.abs(x) * (2.0**-11 if stored == "F16" else 2.0**-8)
    if (format_ := FORMATS.get(stored)) is None:
        return None
    blocks = x.reshape(len(x), -1, format_.block_size)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    return np.broadcast_to(largest / 254, blocks.shape).reshape(x.shape)
