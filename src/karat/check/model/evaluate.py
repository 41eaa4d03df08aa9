"""A node's result from its inputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from karat.check.model.context import Array, Context, DType
from karat.check.model.graph import KINDS, Node
from karat.check.model.kinds import Given, Replace, right


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What an op hands on."""

    x: Array
    dtype: DType


def result(a: Result) -> Array:
    return a.x


def evaluate(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace = right) -> Array:
    """The node's result in `dtype`; inputs are of that dtype. NaN and infinity go through without a warning."""
    with np.errstate(all="ignore"):
        x = KINDS[node.kind].evaluate(Given(node.params, inputs, context, dtype, replace))
        return replace(result)(Result(x, dtype)).astype(dtype, copy=False)
