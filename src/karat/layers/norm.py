"""RMSNorm (arXiv 1910.07467), and what else changes each row by itself."""

from typing import Protocol

from karat.layers.place import Place
from karat.ops.api import Loaded, Ops, Tensor


class RowLayer(Protocol):
    """A layer that computes each row alone, as a norm does."""

    name: str

    def __call__(self, ops: Ops, x: Tensor) -> Tensor: ...


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


class UnitNorm:
    """x / sqrt(mean(x²) + eps) over the last axis of x, of length `size`: an RMSNorm without a weight.

    The result is multiplied by `factor`.
    """

    def __init__(self, name: str, size: int, eps: float, factor: float = 1.0) -> None:
        self.name = name
        self._eps, self._factor = eps * size, size**0.5 * factor

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.l2_norm(x, self._eps, self._factor, name=self.name)


class RouterNorm:
    """What a router reads of x [tokens, hidden]: an RMSNorm whose weight is `name.scale`, times hidden^-½.

    They are recorded as `name.normed` and `name.input`.
    """

    def __init__(self, place: Place, hidden_size: int, eps: float) -> None:
        self.name = place.name
        self._eps, self._factor = eps, hidden_size**-0.5
        self.weight: Loaded = (place / "scale").values(hidden_size)

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        x = ops.rms_norm(x, self.weight, self._eps, name=f"{self.name}.normed")
        return ops.scale(x, self._factor, name=f"{self.name}.input")


class LayerScale:
    """x times a number of the model, the tensor `name`, of the layer `layer`, by whose name it is recorded."""

    def __init__(self, layer: Place, part: str) -> None:
        self.name = layer.name
        self.weight: Loaded = (layer / part).values(1)

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.scale_by(x, self.weight, name=self.name)
