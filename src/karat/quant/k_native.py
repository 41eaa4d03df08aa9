"""The search of karat.quant.k_fit by the C++ extension where it is installed, else in NumPy: the same bits."""

import numpy as np

from karat.quant import k_fit
from karat.quant.k_fit import FittedSymmetric, FittedWithMinimum, Floats

try:
    import karat._native as _native
except ImportError:  # whoever needs it says so (karat.ops.native); here all that is lost is time
    _HAS_NATIVE = False
else:
    _HAS_NATIVE = True


def fit_with_minimum(values: Floats, largest: int, first: float, step: float, num_steps: int) -> FittedWithMinimum:
    """As `k_fit.fit_with_minimum`, for groups of 32."""
    if not _HAS_NATIVE:
        return k_fit.fit_with_minimum(values, largest, first, step, num_steps)
    scale, minimum = (np.empty((len(values), 1), np.float32) for _ in range(2))
    integers = np.empty(values.shape, np.int8)
    _native.fit_with_minimum(_isa(), values, largest, first, step, num_steps, scale, minimum, integers)
    return FittedWithMinimum(scale, minimum, integers)


def fit_symmetric(values: Floats, largest: int) -> FittedSymmetric:
    """As `k_fit.fit_symmetric`, for groups of 16."""
    if not _HAS_NATIVE:
        return k_fit.fit_symmetric(values, largest)
    scale, integers = np.empty((len(values), 1), np.float32), np.empty(values.shape, np.int8)
    _native.fit_symmetric(_isa(), values, largest, scale, integers)
    return FittedSymmetric(scale, integers)


def _isa() -> str:
    """The fastest build that runs here."""
    return _native.supported_isas()[-1]
