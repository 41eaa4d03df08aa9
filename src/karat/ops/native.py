"""The native executor: C++ kernels on the CPU, the same bits from every build of them (csrc/kernels.h)."""

import numpy as np
from numpy.typing import NDArray

from karat.config import FloatName
from karat.errors import ExecutorError
from karat.ops.reference import ReferenceOps

try:
    import karat._native as _native
except ModuleNotFoundError:
    _UNAVAILABLE: str | None = (
        "this installation has no C++ extension, which is left out where there is no working C++ compiler; "
        "with one on the PATH, install Karat again"
    )
except ImportError as error:
    _UNAVAILABLE = f"the C++ extension cannot be loaded ({error}); install Karat again for this Python"
else:
    _UNAVAILABLE = None

Array = NDArray[np.floating]


def unavailable_reason() -> str | None:
    """Why the native executor cannot run here, and the remedy; None where it can."""
    return _UNAVAILABLE


def supported_isas() -> tuple[str, ...]:
    """Kernel builds that this CPU can run, from generic to the fastest; none without the extension."""
    return () if _UNAVAILABLE else tuple(_native.supported_isas())


class NativeOps(ReferenceOps):
    """Ops on NumPy arrays in float32. RMSNorm is native; until they are too, other ops are the reference's.

    `isa` forces a kernel build (one of `supported_isas()`); None takes the fastest.
    """

    def __init__(self, dtype: FloatName = "float32", *, isa: str | None = None) -> None:
        super().__init__(dtype)
        if dtype != "float32":
            raise ExecutorError(f"dtype={dtype!r}: the native executor computes in float32")
        if _UNAVAILABLE:
            raise ExecutorError(f"the native executor is not available: {_UNAVAILABLE}; or use the reference executor")
        runnable = supported_isas()
        if isa is not None and isa not in runnable:
            raise ExecutorError(
                f"kernel build {isa!r}: this CPU and this installation can run {', '.join(runnable)}; "
                "set KARAT_ISA to one of them, or unset it for the fastest"
            )
        self._kernels = _native.Kernels(isa or runnable[-1])

    @property
    def executor(self) -> str:
        return "native"

    @property
    def isa(self) -> str:
        """The kernel build in use."""
        return self._kernels.isa

    def rms_norm(self, x: Array, weight: Array, eps: float, *, name: str) -> Array:
        if x.dtype != np.float32 or weight.dtype != np.float32:
            raise ExecutorError(f"{name}: x is {x.dtype}, weight {weight.dtype}; native kernels compute in float32")
        if x.ndim < 1 or weight.ndim != 1 or x.shape[-1] != weight.shape[0] or x.shape[-1] == 0:
            raise ExecutorError(f"{name}: weight {weight.shape} does not fit the last axis of x {x.shape}")
        if not 0 <= eps < np.inf:
            raise ExecutorError(f"{name}: eps={eps}; expected a finite number of at least 0")
        rows = np.ascontiguousarray(x.reshape(-1, x.shape[-1]), np.float32)  # [rows, n]
        out = np.empty_like(rows)
        self._kernels.rms_norm(rows, np.ascontiguousarray(weight, np.float32), eps, out)
        return out.reshape(x.shape)
