"""RMSNorm (arXiv 1910.07467)."""

from karat.layers.place import Place
from karat.ops.api import Loaded, Ops, Tensor


class RMSNorm:
    """x / sqrt(mean(x²) + eps) * weight over the last axis of x, of length `size`.

    With `plus_one` it multiplies by 1 + weight.
    """

    def __init__(self, place: Place, size: int, eps: float, *, plus_one: bool = False) -> None:
        self.name = place.name
        self._eps, self._plus_one = eps, plus_one
        self.weight: Loaded = place.weight(size)

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self._eps, plus_one=self._plus_one, name=self.name)
