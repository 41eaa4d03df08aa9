"""Ops on single elements, or on pairs of them."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from karat.check.model.context import Array
from karat.check.model.kinds import Given, Kind
from karat.ops import api


def silu(x: Array, alpha: np.floating | int = 1) -> Array:
    return x / (1 + np.exp(-(alpha * x)))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """By tanh, without a sum of it and 1, of which nothing is left where x is far below 0."""
    return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def capped(x: Array, cap: np.floating) -> Array:
    return np.tanh(x / cap) * cap


@dataclass(frozen=True, slots=True, eq=False)
class GateAndUp:
    gate: Array
    up: Array
    activation: Callable[[Array], Array] = silu


def activated(a: GateAndUp) -> Array:
    return a.activation(a.gate) * a.up


def _silu_mul(given: Given) -> Array:
    gate, up = given.inputs
    return given.replace(activated)(GateAndUp(gate, up))


def _gelu_mul(given: Given) -> Array:
    gate, up = given.inputs
    return given.replace(activated)(GateAndUp(gate, up, gelu))


@dataclass(frozen=True, slots=True, eq=False)
class GatedBy:
    gate: Array
    columns: int


def gated_by(a: GatedBy) -> Array:
    """[rows, columns]: the number of the gate that each element of a row is multiplied by, of a gate [rows, …]."""
    return np.repeat(a.gate, a.columns // a.gate.shape[-1], axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class Gated:
    x: Array
    gate: Array  # like x
    activation: Callable[[Array], Array] = sigmoid


def sigmoid_mul(a: Gated) -> Array:
    return a.x * a.activation(a.gate)


def _sigmoid_mul(given: Given) -> Array:
    x, gate = (values.reshape(len(values), -1) for values in given.inputs)
    by_element = given.replace(gated_by)(GatedBy(gate, x.shape[-1]))
    return given.replace(sigmoid_mul)(Gated(x, by_element)).reshape(given.inputs[0].shape)


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    x: Array
    y: Array


def add(a: Sum) -> Array:
    return a.x + a.y


def _add(given: Given) -> Array:
    x, y = given.inputs
    return given.replace(add)(Sum(x, y))


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    x: Array
    y: Array


def mul(a: Factors) -> Array:
    return a.x * a.y


def _mul(given: Given) -> Array:
    x, y = given.inputs
    return given.replace(mul)(Factors(x, y))


def _sigmoid(given: Given) -> Array:
    return given.replace(sigmoid)(given.inputs[0])


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    x: Array
    factor: np.floating


def scale(a: Scaled) -> Array:
    return a.x * a.factor


def _scale(given: Given) -> Array:
    return given.replace(scale)(Scaled(given.inputs[0], given.number("factor")))


def _scale_by(given: Given) -> Array:
    return given.replace(scale)(Scaled(given.inputs[0], given.vector("weight")[0]))


@dataclass(frozen=True, slots=True, eq=False)
class Capped:
    x: Array
    cap: np.floating


def soft_cap(a: Capped) -> Array:
    return capped(a.x, a.cap)


def _soft_cap(given: Given) -> Array:
    return given.replace(soft_cap)(Capped(given.inputs[0], given.number("cap")))


# Sigmoid: 4 of its exponential, a sum and a quotient; with a product 7.
KINDS = (
    Kind("silu_mul", _silu_mul, of=api.SiluMul, roundings=8),
    Kind("gelu_mul", _gelu_mul, of=api.GeluMul, roundings=14),
    Kind("sigmoid_mul", _sigmoid_mul, of=api.SigmoidMul, roundings=8),
    Kind("add", _add, of=api.Add),
    Kind("mul", _mul, of=api.Mul),
    Kind("sigmoid", _sigmoid, of=api.Sigmoid, roundings=6),
    Kind("scale", _scale, ("factor",), of=api.Scale, roundings=2),
    Kind("scale_by", _scale_by, ("weight",), of=api.ScaleBy),
    Kind("soft_cap", _soft_cap, ("cap",), of=api.SoftCap, roundings=6),
)
