"""Choosing the scales of K formats: of several candidates, the one of least weighted squared error.

The search is ggml's (make_qkx2_quants and make_qx_quants, without an importance matrix), for many groups at once. Sums
run in another order than there, so that a choice between near equals may differ.
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
    weights = np.abs(values) + np.sqrt(np.mean(values * values, axis=1, keepdims=True))
    low = np.minimum(values.min(axis=1, keepdims=True), np.float32(0))
    is_flat = values.max(axis=1, keepdims=True) == low
    span: Floats = np.where(is_flat, np.float32(1), values.max(axis=1, keepdims=True) - low)
    weighted = weights * values
    shifted = values - low
    sum_w, sum_x = weights.sum(axis=1, keepdims=True), weighted.sum(axis=1, keepdims=True)

    def sums(num_steps: float) -> tuple[Floats, Floats, Floats]:
        """Of weight * integer, weight * integer ** 2 and weight * value * integer, for this many steps in the range."""
        quants = np.clip(np.rint(shifted * (np.float32(num_steps) / span)), 0, largest)
        weighted_quants = weights * quants
        return weighted_quants.sum(axis=1, keepdims=True), _dot(weighted_quants, quants), _dot(weighted, quants)

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
    return np.where(is_flat, np.float32(0), scale), -np.where(is_flat, low, minimum)


def _dot(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Of each row with the same row, [n, size] and [n, size] to [n, 1]."""
    return np.asarray(np.einsum("ij,ij->i", left, right))[:, None]


def fit_symmetric(values: Floats, largest: int) -> Floats:
    """Scale [n, 1] for groups [n, size] as scale * integer, with integers from -largest to largest - 1.

    A value weighs as its square. Tried are scales for which the largest magnitude takes `largest` steps and up to 0.9
    more or fewer; each is then fitted to its integers.
    """
    extreme = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)
    is_zero = np.abs(extreme) < np.float32(1e-15)
    extreme = np.where(is_zero, np.float32(1), extreme)
    # In float64: where one value outweighs the others, candidates differ by less than float32 tells apart.
    weights = np.square(values, dtype=np.float64)
    weighted = weights * values
    scale = best = np.zeros(extreme.shape)
    for number in (0, *range(-9, 0), *range(1, 10)):
        inverse = np.float32(-(largest + 0.1 * number)) / extreme
        quants = np.clip(np.rint(values * inverse), -largest, largest - 1)
        sum_xl, sum_l2 = _dot(weighted, quants), _dot(weights * quants, quants)
        is_better = (sum_l2 > 0) & ((sum_xl * sum_xl > best * sum_l2) | (number == 0))
        own = sum_xl / sum_l2
        scale, best = np.where(is_better, own, scale), np.where(is_better, own * sum_xl, best)
    return np.where(is_zero, 0, scale).astype(np.float32)
