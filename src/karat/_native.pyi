"""Types of the C++ extension (csrc/module.cpp)."""

import numpy as np
from numpy.typing import NDArray

compiler: str

def supported_isas() -> list[str]: ...

class Kernels:
    def __init__(self, isa: str) -> None: ...
    @property
    def isa(self) -> str: ...
    def rms_norm(
        self, x: NDArray[np.float32], weight: NDArray[np.float32], eps: float, out: NDArray[np.float32]
    ) -> None: ...
