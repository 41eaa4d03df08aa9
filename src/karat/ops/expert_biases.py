"""Biases of experts that are added to a sum over ranks, in executors that take it apart: as kernels add them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from karat.ops.api import Experts, Loaded
from karat.ops.fma import F32, fma


def with_late_biases(
    whole: F32, op: Experts, ids: NDArray[np.int32], weights: F32, values: Callable[[Loaded], F32]
) -> F32:
    """`whole`, the tree of the op, and what its `late_biases` add to each row (sum_of_experts in kernels.h)."""
    if not op.late_biases:
        return whole
    total = np.zeros_like(whole)
    for number, bias in enumerate(op.late_biases):
        rows, choice = np.nonzero(ids == op.first + number)
        if len(rows):
            total[rows] = fma(weights[rows, choice][:, None], values(bias), total[rows])
    return whole + total
