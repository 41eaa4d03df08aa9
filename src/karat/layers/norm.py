"""RMSNorm (arXiv 1910.07467), and what else changes each row by itself."""

from typing import Protocol

from karat.config import LayerShape
from karat.layers.place import Place
from karat.layers.shards import Cut, own_heads, own_kv_heads, own_kv_leaves, own_leaves, rows_of
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


class AllHeadsNorm:
    """RMSNorms of q and of k of the attention `place`, each over all heads of its row; ranks add up their squares.

    The leaves of both sums have the query heads of o_proj's leaves. A KV head is in the leaf of its first query head.
    """

    def __init__(self, place: Place, shape: LayerShape, eps: float) -> None:
        heads, kv_heads, size, group = shape.num_heads, shape.num_kv_heads, shape.head_dim, place.group
        unit = place.units[Cut(heads * size, size)] // size
        self._name, self._eps, self._counts = place.name, eps, (heads * size, kv_heads * size)
        self._group = group if group.size > 1 else None
        held = (own_heads(heads, unit, group), own_kv_heads(heads, kv_heads, unit, group))
        self.q_weight, self.k_weight = (
            (place / part).weight(count, shard_axis=0, pieces=(rows_of(own, size),) if group.size > 1 else None)
            for part, count, own in zip(("q_norm", "k_norm"), self._counts, held, strict=True)
        )
        self._q_leaves = tuple(end * size for end in own_leaves(heads, unit, group))
        first, *ends = (kv * size for kv in own_kv_leaves(heads, kv_heads, unit, group))
        self._k_first, self._k_leaves = first, tuple(ends)

    def __call__(self, ops: Ops, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        squares = ops.square_sums(
            q,
            k,
            q_leaves=self._q_leaves,
            k_leaves=self._k_leaves,
            k_first=self._k_first,
            group=self._group,
            name=f"{self._name}.qk_squares",
        )
        eps, (q_count, k_count) = self._eps, self._counts
        q = ops.part_norm(q, squares, self.q_weight, eps, part=0, count=q_count, name=f"{self._name}.q_norm")
        return q, ops.part_norm(k, squares, self.k_weight, eps, part=1, count=k_count, name=f"{self._name}.k_norm")


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
