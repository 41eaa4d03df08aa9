"""The reference executor with integers as activations: `executor="reference", activations="int16"`, slow.

Matrices in a block format of karat.quant.CODINGS keep their codes and are multiplied as karat.ops.integers defines, bit
for bit what kernels do. Everything else is ReferenceOps in float32: float weights, norms, attention, and formats
without codes.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from karat.checkpoint.weights import Weight
from karat.ops.api import Linear, Op
from karat.ops.executor import Held
from karat.ops.integers import CodedMatrix, Width, coded, leaf_sums, linear
from karat.ops.reference import Array, MappedTable, ReferenceOps, require_fits, whole_sum
from karat.quant import CODINGS


class IntegerOps(ReferenceOps):
    """ReferenceOps("float32") whose linear layers on block formats read activations as integers of `width`.

    A loaded matrix does not depend on the width: models may share it (`Model.on`).
    """

    def __init__(self, width: Width) -> None:
        super().__init__("float32")
        self.width, self.activations = width, width.name

    def bytes_of(self, dtype: str, shape: tuple[int, ...]) -> int:
        if dtype not in CODINGS or len(shape) != 2:
            return super().bytes_of(dtype, shape)
        return prod(shape) + prod(shape) // CODINGS[dtype].sub_block * 8  # at most: not every format has minimums

    def load(self, weight: Weight, *, later: bool = False) -> Array | CodedMatrix:  # type: ignore[override]
        return coded(weight) if weight.dtype in CODINGS and len(weight.shape) == 2 else super().load(weight)

    def held(self, loaded: Array | CodedMatrix | MappedTable) -> Held:
        """A coded matrix as the float32 values of its codes."""
        return super().held(loaded[:] if isinstance(loaded, CodedMatrix) else loaded)

    def leaf_sums(self, x: Array, weight: Array | CodedMatrix, ends: Sequence[int]) -> list[Array]:
        if not isinstance(weight, CodedMatrix):
            return super().leaf_sums(x, weight, ends)
        return list(leaf_sums(x.astype(np.float32), weight, self.width, ends))

    def apply(self, op: Op[Any]) -> Any:
        if not (isinstance(op, Linear) and isinstance(op.weight, CodedMatrix)):
            return super().apply(op)
        require_fits(op)
        return whole_sum(op, linear(op.x.astype(np.float32), op.weight, self.width, op.leaves or op.weight.shape[1:]))
