"""A kind of node: its parameters, and how its result is computed. karat.check.model.right has a file for each part.

Each right function is taken by way of `Given.replace`, which may put a wrong one in its place
(karat.check.mistakes.registry).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from karat.check.model.context import Array, Context, DType, Matrix, StoredMatrix
from karat.ops import api

Arguments = TypeVar("Arguments")
Op = Callable[[Arguments], NDArray[Any]]  # numbers, or what a token sees


class Replace(Protocol):
    """The function that takes the place of a right one."""

    def __call__(self, right: Op[Arguments], /) -> Op[Arguments]: ...


def right(function: Op[Arguments], /) -> Op[Arguments]:
    """The right function itself, for `Given.replace`."""
    return function


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """What the result of a node is computed from. `inputs` are of `dtype`, which the result has too."""

    params: Mapping[str, Any]
    inputs: Sequence[Array]
    context: Context
    dtype: DType
    replace: Replace

    def number(self, key: str) -> np.floating[Any]:
        """A parameter that is a number."""
        number: np.floating[Any] = self.dtype.type(self.params[key])
        return number

    def vector(self, key: str) -> Array:
        """The values of the weight whose name is a parameter."""
        return self.context.weights.array(self.params[key], self.dtype)

    def matrix(self, key: str) -> Matrix:
        return StoredMatrix(self.context.weights, self.params[key], self.dtype)


@dataclass(frozen=True, slots=True)
class Kind:
    """parameters: what a node of this kind says; weights stand in them by name. of: the op that is one such node; the
    parameters are fields of the op. roundings: how many are inside, after the one that the inputs' noise stands for, as
    a number, or of a result; erf, exp and log of libraries are off by two units, which are four.
    """

    name: str
    evaluate: Callable[[Given], Array]
    parameters: tuple[str, ...] = ()
    of: type[api.Op[Any]] | None = None
    roundings: int | Callable[[Array], Array] = 1

    def rounded(self, result: Array) -> Array:
        """How far the roundings inside may move a result, in units of half its last place."""
        counted = self.roundings(result) if callable(self.roundings) else self.roundings
        return counted * np.abs(result)
