"""RMSNorm."""

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
    return x if weight.size == x.shape[-1] else x.reshape(len(x), -1)


def mean_square(x: Array) -> Array:
    return np.mean(x * x, axis=-1, keepdims=True)


def _norm(given: Given) -> Array:
    return given.replace(norm)(Norm(given.inputs[0], given.vector("weight"), given.number("eps"), given.context))


KINDS = (Kind("norm", _norm, ("weight", "eps"), of=api.RmsNorm, roundings=3),)
