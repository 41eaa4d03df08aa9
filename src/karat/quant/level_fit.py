"""Choosing the scales of formats whose values are uneven levels (IQ4_NL, IQ4_XS), as k_fit does for integers.

The search is ggml's (quantize_row_iq4_nl_impl, without an importance matrix), in the same float32 operations.
karat.quant.k_native runs it in C++ where it can, with the same bits.
"""

import numpy as np
from numpy.typing import NDArray

from karat.quant.k_fit import Floats, extremes, total


def fit_levels(values: Floats, levels: Floats, num_steps: int) -> Floats:
    """Scales [n, 1] of groups [n, size] as scale * level, levels rising; 0 for groups that count as zero.

    A value weighs as its square. Tried are scales that put the largest magnitude on the first level's, with the other
    sign, and on numbers up to `num_steps` around the first level; each is then fitted to its levels.
    """
    extreme, is_zero = extremes(values)
    values = np.ascontiguousarray(values.T)
    weights = values * values

    def fitted(inverse: Floats) -> tuple[Floats, Floats]:
        """The sums that a scale is the quotient of."""
        chosen = levels[nearest_levels(values, levels, inverse)]
        products = weights * chosen
        return total(products * values), total(products * chosen)

    sum_xl, sum_l2 = fitted(np.float32(1) / (-extreme / levels[0]))
    scale = sum_xl / sum_l2
    best = scale * sum_xl
    for number in range(-num_steps, num_steps + 1):
        sum_xl, sum_l2 = fitted((np.float32(number) + levels[0]) / extreme)
        better = (sum_l2 > 0) & (sum_xl * sum_xl > best * sum_l2)
        scale = np.where(better, sum_xl / sum_l2, scale)
        best = np.where(better, scale * sum_xl, best)
    return np.where(is_zero, np.float32(0), scale)[:, None]


def nearest_levels(values: Floats, levels: Floats, inverses: Floats) -> NDArray[np.int8]:
    """The number of the level nearest to each value times the inverse of its scale; of two as near, the upper one.

    `inverses` are broadcast.
    """
    middles = (levels[:-1] + levels[1:]) / np.float32(2)
    return np.searchsorted(middles, values * inverses, side="right").astype(np.int8)
