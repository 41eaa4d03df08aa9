"""The searches of karat.quant.k_fit and level_fit: in the C++ extension where it is installed, else in NumPy.

Both give the same bits.
"""

import numpy as np
from numpy.typing import NDArray

from karat.machine.extension import MISSING, native
from karat.quant import k_fit, level_fit
from karat.quant.k_fit import FittedSymmetric, FittedWithMinimum, Floats

_HAS_NATIVE = MISSING is None  # karat.ops.native reports it; here only speed is lost


def fit_with_minimum(
    values: Floats, largest: int, first: float, step: float, num_steps: int, *, absolute: bool = False
) -> FittedWithMinimum:
    """As `k_fit.fit_with_minimum`, for groups of 32, or of 16 if `absolute`."""
    if not _HAS_NATIVE:
        return k_fit.fit_with_minimum(values, largest, first, step, num_steps, absolute=absolute)
    scale, minimum = (np.empty((len(values), 1), np.float32) for _ in range(2))
    integers = np.empty(values.shape, np.int8)
    native().fit_with_minimum(_isa(), values, largest, first, step, num_steps, absolute, scale, minimum, integers)
    return FittedWithMinimum(scale, minimum, integers)


def fit_symmetric(values: Floats, largest: int) -> FittedSymmetric:
    """As `k_fit.fit_symmetric`, for groups of 16."""
    if not _HAS_NATIVE:
        return k_fit.fit_symmetric(values, largest)
    scale, integers = np.empty((len(values), 1), np.float32), np.empty(values.shape, np.int8)
    native().fit_symmetric(_isa(), values, largest, scale, integers)
    return FittedSymmetric(scale, integers)


def fit_in_turn(values: Floats, largest: int) -> FittedSymmetric:
    """As `k_fit.fit_in_turn`, for groups of 16."""
    if not _HAS_NATIVE:
        return k_fit.fit_in_turn(values, largest)
    scale, integers = np.empty((len(values), 1), np.float32), np.empty(values.shape, np.int8)
    native().fit_in_turn(_isa(), values, largest, scale, integers)
    return FittedSymmetric(scale, integers)


def fit_levels(values: Floats, levels: Floats, num_steps: int) -> Floats:
    """As `level_fit.fit_levels`, for groups of 32 and 16 levels."""
    if not _HAS_NATIVE:
        return level_fit.fit_levels(values, levels, num_steps)
    scale = np.empty((len(values), 1), np.float32)
    native().fit_levels(_isa(), values, levels, num_steps, scale)
    return scale


def nearest_levels(values: Floats, levels: Floats, inverses: Floats) -> NDArray[np.int8]:
    """As `level_fit.nearest_levels`, for groups [n, 32] with an inverse [n, 1] each, and 16 levels."""
    if not _HAS_NATIVE:
        return level_fit.nearest_levels(values, levels, inverses)
    chosen = np.empty(values.shape, np.int8)
    native().nearest_levels(_isa(), values, levels, inverses, chosen)
    return chosen


def _isa() -> str:
    """The fastest build of the kernels that this processor runs."""
    *_, fastest = native().supported_isas()
    return str(fastest)
