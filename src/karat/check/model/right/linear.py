"""Linear layers."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Sequence
from dataclasses import dataclass

from karat.check.model.context import Array, Context, DType, Matrix, Weights
from karat.check.model.kinds import Given, Kind


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """given: x before integers were made of it. others: what a mistake reads besides."""

    x: Array
    weight: Matrix
    context: Context
    given: Array
    others: Sequence[Array] = ()


def product(a: Product) -> Array:
    return a.weight.product(a.x)


@dataclass(frozen=True, slots=True, eq=False)
class Biased:
    y: Array
    bias: Array | None
    weights: Weights
    dtype: DType


def biased(a: Biased) -> Array:
    return a.y if a.bias is None else a.y + a.bias


def _linear(given: Given) -> Array:
    params, context = given.params, given.context
    rows = given.inputs[0].reshape(len(given.inputs[0]), -1)
    x = context.read(rows, params["weight"])
    bias = None if params.get("bias") is None else given.vector("bias")
    y = given.replace(product)(Product(x, given.matrix("weight"), context, rows, given.inputs[1:]))
    y = given.replace(biased)(Biased(y, bias, context.weights, given.dtype))
    head_dim = params.get("head_dim")
    return y.reshape(len(x), -1, head_dim) if head_dim else y


KINDS = (Kind("linear", _linear, ("weight", "bias", "head_dim")),)
