"""The search for the scales of K formats: of several candidates, the one of least weighted squared error is chosen.

The searches are ggml's (make_qkx2_quants, make_qx_quants and make_q3_quants, without an importance matrix) for many
groups at once. They use the same float32 operations and sum a group's values one after the other, as ggml does. A build
of ggml whose compiler fuses multiplications and additions may choose otherwise between near equals.

This file is the definition. karat.quant.k_native runs the same searches in C++ where the extension is installed, with
the same bits.

Arrays are held as [size, n], a group in a column: summing all groups is then a few additions of whole rows. No sum uses
a function that fuses or reorders (np.einsum does on some machines).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_SMALLEST = np.float32(1e-15)  # below it a group counts as zero


class FittedWithMinimum(NamedTuple):
    """Scale and minimum of each group [n, 1], and the integers [n, size] that they were fitted to."""

    scale: Floats
    minimum: Floats
    integers: NDArray[np.int8]


def fit_with_minimum(
    values: Floats, largest: int, first: float, step: float, num_steps: int, *, absolute: bool = False
) -> FittedWithMinimum:
    """Groups [n, size] as scale * integer - minimum, with integers from 0 to `largest`.

    The weight of a value is its magnitude plus the root mean square of its group. For i from 0 to `num_steps`, a
    candidate scale divides the range above the best minimum so far into `largest + first + i * step` steps; scale and
    minimum are then fitted to the integers that result. With `absolute`, the weight of a value is its magnitude alone,
    and the sum of absolute errors is compared instead of that of squares.
    """
    values = np.ascontiguousarray(values.T)
    weights = np.abs(values)
    if not absolute:
        weights = weights + np.sqrt(total(values * values) / np.float32(len(values)))
    low = np.minimum(values.min(axis=0), np.float32(0))
    high = values.max(axis=0)
    is_flat = high == low
    high = np.where(is_flat, low + np.float32(1), high)
    sum_w, sum_x = total(weights), total(weights * values)
    quants, products = np.empty_like(values), np.empty_like(values)
    most, least = np.full_like(values, largest), np.zeros_like(values)  # NumPy is slower with single numbers

    def quantise(inverse: Floats, minimum: Floats) -> None:
        """Into `quants`."""
        np.subtract(values, minimum, out=quants)
        np.multiply(quants, inverse, out=quants)
        np.rint(quants, out=quants)
        np.minimum(quants, most, out=quants)
        np.maximum(quants, least, out=quants)

    def error(scale: Floats, minimum: Floats) -> Floats:
        np.multiply(quants, scale, out=products)
        np.add(products, minimum, out=products)
        np.subtract(products, values, out=products)
        if absolute:
            np.abs(products, out=products)
        else:
            np.multiply(products, products, out=products)
        return total(np.multiply(weights, products, out=products))

    inverse = np.float32(largest) / (high - low)
    scale, minimum = np.float32(1) / inverse, low
    best_inverse, best_low = inverse, low
    quantise(inverse, low)
    best = error(scale, low)
    for number in range(num_steps + 1):
        steps = np.float32(first) + np.float32(step) * np.float32(number) + np.float32(largest)
        inverse = steps / (high - minimum)
        quantise(inverse, minimum)
        np.multiply(weights, quants, out=products)
        sum_l, sum_xl = total(products), total(products * values)
        sum_l2 = total(np.multiply(products, quants, out=products))
        determinant = sum_w * sum_l2 - sum_l * sum_l
        free_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        free_minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        own_scale: Floats = np.where(free_minimum > 0, sum_xl / sum_l2, free_scale)
        own_minimum: Floats = np.minimum(free_minimum, np.float32(0))
        found = error(own_scale, own_minimum)
        better = (determinant > 0) & (found < best)
        best_inverse, best_low = np.where(better, inverse, best_inverse), np.where(better, minimum, best_low)
        scale, minimum = np.where(better, own_scale, scale), np.where(better, own_minimum, minimum)
        best = np.where(better, found, best)
    quantise(best_inverse, best_low)
    quants[:, is_flat] = 0
    scale, minimum = np.where(is_flat, np.float32(0), scale), np.where(is_flat, low, minimum)
    return FittedWithMinimum(scale[:, None], -minimum[:, None], quants.T.astype(np.int8, order="C"))


class FittedSymmetric(NamedTuple):
    """Scale of each group [n, 1], and the integers [n, size] that it was fitted to."""

    scale: Floats
    integers: NDArray[np.int8]


def fit_symmetric(values: Floats, largest: int) -> FittedSymmetric:
    """Groups [n, size] as scale * integer, with integers from -largest to largest - 1.

    The weight of a value is its square. The candidate scales divide the largest magnitude into `largest` steps, and
    into up to 0.9 steps more or fewer; each scale is then fitted to the integers that result.
    """
    extreme, is_zero = extremes(values)
    values = np.ascontiguousarray(values.T)
    weights = values * values
    weighted = weights * values
    quants, products = np.empty_like(values), np.empty_like(values)
    least, most = np.full_like(values, -largest), np.full_like(values, largest - 1)

    def quantise(inverse: Floats) -> None:
        """Into `quants`."""
        np.multiply(values, inverse, out=quants)
        np.rint(quants, out=quants)
        np.minimum(quants, most, out=quants)
        np.maximum(quants, least, out=quants)

    scale = best = best_inverse = np.zeros_like(extreme)
    for number in (0, *range(-9, 0), *range(1, 10)):
        inverse = -(np.float32(largest) + np.float32(0.1) * np.float32(number)) / extreme
        quantise(inverse)
        sum_xl = total(np.multiply(weighted, quants, out=products))
        sum_l2 = total(np.multiply(np.multiply(weights, quants, out=products), quants, out=products))
        own = np.where(sum_l2 > 0, sum_xl / sum_l2, np.float32(0))
        better = (sum_l2 > 0) & (sum_xl * sum_xl > best * sum_l2) | (number == 0)
        scale, best = np.where(better, own, scale), np.where(better, own * sum_xl, best)
        best_inverse = np.where(better, inverse, best_inverse)
    quantise(best_inverse)
    quants[:, is_zero] = -largest
    return FittedSymmetric(np.where(is_zero, np.float32(0), scale)[:, None], quants.T.astype(np.int8, order="C"))


def fit_in_turn(values: Floats, largest: int) -> FittedSymmetric:
    """As `fit_symmetric`, by another search: integers are improved one by one.

    The first scale divides the largest magnitude into `largest` steps. In each of five rounds, each integer in turn is
    computed anew with the scale that the other integers of its group give, and replaced where that lowers the error.
    """
    extreme, is_zero = extremes(values)
    values = np.ascontiguousarray(values.T)
    weights = values * values
    weighted = weights * values
    quants = np.clip(np.rint(values * (np.float32(-largest) / extreme)), -largest, largest - 1)
    sum_xl, sum_l2 = total(weighted * quants), total(weights * quants * quants)
    for place in [*range(len(values))] * 5:
        weight, old = weights[place], quants[place]
        rest_xl, rest_l2 = sum_xl - weighted[place] * old, sum_l2 - weight * old * old
        new = np.rint(np.clip(values[place] * rest_l2 / rest_xl, -largest, largest - 1))
        new_xl, new_l2 = rest_xl + weighted[place] * new, rest_l2 + weight * new * new
        better = (rest_xl > 0) & (new != old) & (new_l2 > 0) & (new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2)
        quants[place] = np.where(better, new, old)
        sum_xl, sum_l2 = np.where(better, new_xl, sum_xl), np.where(better, new_l2, sum_l2)
    scale = np.where(sum_l2 > 0, sum_xl / sum_l2, np.float32(0))
    quants[:, is_zero] = -largest
    return FittedSymmetric(np.where(is_zero, np.float32(0), scale)[:, None], quants.T.astype(np.int8, order="C"))


def extremes(values: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """The value of largest magnitude [n] (the first of equals) of groups [n, size], and whether it counts as zero [n].

    Where it counts as zero (below 1e-15), 1 is returned in its place.
    """
    extreme = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)[:, 0]
    is_zero = np.abs(extreme) < _SMALLEST
    return np.where(is_zero, np.float32(1), extreme), is_zero


def total(terms: Floats) -> Floats:
    """[size, n] to [n], summed row after row. NumPy would sum a single column pairwise, so it is accumulated."""
    return np.asarray(np.add.reduce(terms, axis=0) if terms.shape[1] > 1 else np.add.accumulate(terms, axis=0)[-1])
