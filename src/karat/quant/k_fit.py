"""Choosing the scales of K formats: of several candidates, the one of least weighted squared error.

The search is ggml's (make_qkx2_quants and make_qx_quants, without an importance matrix), for many groups at once, and
sums run in its order, one value of a group after the other. What may differ is the rounding of a sum's terms, which
there depends on the compiler, and so a choice between near equals.

Arrays are held as [size, n], a group in a column: a sum over groups is then a few additions of whole rows.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def fit_with_minimum(values: Floats, largest: int, first: float, step: float, num_steps: int) -> tuple[Floats, Floats]:
    """Scale and minimum [n, 1] for groups [n, size] as scale * integer - minimum, with integers from 0 to `largest`.

    A value weighs as much as its magnitude and the root mean square of its group together. Tried are scales for which
    the range takes `largest + first + i * step` steps; each is then fitted to its integers.
    """
    values = np.ascontiguousarray(values.T)
    weights = np.abs(values) + np.sqrt(_dot(values, values) / np.float32(len(values)))
    low = np.minimum(values.min(axis=0), np.float32(0))
    high = values.max(axis=0)
    is_flat = high == low
    span: Floats = np.where(is_flat, np.float32(1), high - low)
    weighted = weights * values
    shifted = values - low
    sum_w, sum_x = np.add.reduce(weights), np.add.reduce(weighted)
    quants, weighted_quants = np.empty_like(values), np.empty_like(values)
    most = np.full_like(values, largest)  # NumPy is several times slower with a single number

    def sums(num_steps: float) -> tuple[Floats, Floats, Floats]:
        """Of weight * integer, weight * integer ** 2 and weight * value * integer, for this many steps in the range."""
        np.multiply(shifted, np.float32(num_steps) / span, out=quants)
        np.rint(quants, out=quants)
        if num_steps > largest + 0.4:  # else nothing is rounded beyond the largest
            np.minimum(quants, most, out=quants)
        np.multiply(weights, quants, out=weighted_quants)
        return np.add.reduce(weighted_quants), _dot(weighted_quants, quants), _dot(weighted, quants)

    def error(scale: Floats, minimum: Floats, sum_l: Floats, sum_l2: Floats, sum_xl: Floats) -> Floats:
        """The weighted squared error, without the part that is the same for all."""
        two = np.float32(2)
        of_scale = scale * (scale * sum_l2 - two * sum_xl)
        of_minimum = minimum * (minimum * sum_w - two * sum_x)
        return np.asarray(of_scale + of_minimum + two * scale * minimum * sum_l)

    scale: Floats = span / np.float32(largest)
    minimum = low
    best = error(scale, minimum, *sums(largest))
    for number in range(num_steps + 1):
        sum_l, sum_l2, sum_xl = sums(largest + first + step * number)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        own_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        own_minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        own_scale = np.where(own_minimum > 0, sum_xl / sum_l2, own_scale)
        own_minimum = np.minimum(own_minimum, np.float32(0))
        found = error(own_scale, own_minimum, sum_l, sum_l2, sum_xl)
        is_better = (determinant > 0) & (found < best)
        scale, minimum, best = (
            np.where(is_better, new, old) for new, old in ((own_scale, scale), (own_minimum, minimum), (found, best))
        )
    scale, minimum = np.where(is_flat, np.float32(0), scale), -np.where(is_flat, low, minimum)
    return scale[:, None], minimum[:, None]


def _dot(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Of each column with the same column, [size, n] and [size, n] to [n]: products, then their sum."""
    return np.asarray(np.einsum("ij,ij->j", left, right))


def fit_symmetric(values: Floats, largest: int) -> Floats:
    """Scale [n, 1] for groups [n, size] as scale * integer, with integers from -largest to largest - 1.

    A value weighs as its square. Tried are scales for which the largest magnitude takes `largest` steps and up to 0.9
    more or fewer; each is then fitted to its integers.
    """
    extreme = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)[:, 0]
    is_zero = np.abs(extreme) < np.float32(1e-15)
    extreme = np.where(is_zero, np.float32(1), extreme)
    values = np.ascontiguousarray(values.T)
    # In float64: where one value outweighs the others, candidates differ by less than float32 tells apart.
    weights = np.square(values, dtype=np.float64)
    weighted = weights * values
    scale = best = np.zeros(extreme.shape)
    quants, weighted_quants = np.empty_like(values), np.empty_like(weights)
    least, most = np.full_like(values, -largest), np.full_like(values, largest - 1)
    for number in (0, *range(-9, 0), *range(1, 10)):
        np.multiply(values, np.float32(-(largest + 0.1 * number)) / extreme, out=quants)
        np.rint(quants, out=quants)
        np.minimum(quants, most, out=quants)
        np.maximum(quants, least, out=quants)
        exact = quants.astype(np.float64)
        np.multiply(weights, exact, out=weighted_quants)
        sum_xl, sum_l2 = _dot(weighted, exact), _dot(weighted_quants, exact)
        is_better = (sum_l2 > 0) & ((sum_xl * sum_xl > best * sum_l2) | (number == 0))
        own = sum_xl / sum_l2
        scale, best = np.where(is_better, own, scale), np.where(is_better, own * sum_xl, best)
    return np.where(is_zero, 0, scale).astype(np.float32)[:, None]
