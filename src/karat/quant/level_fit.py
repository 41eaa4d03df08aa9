"""The search for the scales of formats with uneven levels (IQ4_NL, IQ4_XS); k_fit is its counterpart for integers.

The search is ggml's (quantize_row_iq4_nl_impl, without an importance matrix), in the same float32 operations.
karat.quant.k_native runs it in C++ where the extension is installed, with the same bits.
"""

import numpy as np
from numpy.typing import NDArray

from karat.quant.k_fit import Floats, extremes, total


def fit_levels(values: Floats, levels: Floats, num_steps: int) -> Floats:
    """Scales [n, 1] of groups [n, size] as scale * level, with rising levels; 0 for groups that count as zero.

    The weight of a value is its square. One candidate scale puts the value of largest magnitude on the negated first
    level; the others put it on first level + i, for i from -num_steps to num_steps. Each scale is then fitted to the
    levels that result.
    """
    extreme, is_zero = extremes(values)
    values = np.ascontiguousarray(values.T)
    weights = values * values

    def fitted(inverse: Floats) -> tuple[Floats, Floats]:
        """Numerator and denominator of the scale that fits the levels chosen with `inverse`."""
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
    """The number of the level nearest to value * inverse, of each value; of two equally near, the upper one.

    `inverses` (1 / scale) broadcast against `values`.
    """
    middles = (levels[:-1] + levels[1:]) / np.float32(2)
    return np.searchsorted(middles, values * inverses, side="right").astype(np.int8)
