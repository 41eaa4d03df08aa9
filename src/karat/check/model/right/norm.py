"""Norms: RMSNorm, and that of Euclid."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from dataclasses import dataclass

import numpy as np

from karat.check.model.context import Array, Context
from karat.check.model.kinds import Given, Kind
from karat.ops import api


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    x: Array
    weight: Array
    eps: np.floating
    context: Context


def norm(a: Norm) -> Array:
    x = spanned(a.x, a.weight)
    return (x / np.sqrt(mean_square(x) + a.eps) * a.weight).reshape(a.x.shape)


def spanned(x: Array, weight: Array) -> Array:
    """x with a last axis as long as the weight: heads, or all heads of a row together."""
    return x if weight.size == x.shape[-1] else x.reshape(len(x), -1, weight.size)


def mean_square(x: Array) -> Array:
    return np.mean(x * x, axis=-1, keepdims=True)


def _norm(given: Given) -> Array:
    weight = given.vector("weight")
    weight = 1 + weight if given.params["plus_one"] else weight
    return given.replace(norm)(Norm(given.inputs[0], weight, given.number("eps"), given.context))


@dataclass(frozen=True, slots=True, eq=False)
class EuclidNorm:
    x: Array
    eps: np.floating
    factor: np.floating


def l2_norm(a: EuclidNorm) -> Array:
    return a.x / np.sqrt(np.sum(a.x * a.x, axis=-1, keepdims=True) + a.eps) * a.factor


def _l2_norm(given: Given) -> Array:
    return given.replace(l2_norm)(EuclidNorm(given.inputs[0], given.number("eps"), given.number("factor")))


# Of Euclid's: half of what the square, the last sum and eps round (2), and the root; a reciprocal and a product (2);
# the factor and the product with it (2); less one, as elsewhere.
KINDS = (
    Kind("norm", _norm, ("weight", "eps", "plus_one"), of=api.RmsNorm, roundings=3),
    Kind("l2_norm", _l2_norm, ("eps", "factor"), of=api.L2Norm, roundings=6),
)
