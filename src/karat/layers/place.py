"""Where a layer stands in a model: what it is called, who gives it its weights, and how those are shared out."""

from dataclasses import dataclass, replace

from karat.checkpoint.weights import WeightSpec
from karat.layers.shards import CutUnits, Piece
from karat.layers.weights import Take
from karat.ops.api import Loaded
from karat.ranks.group import Group


@dataclass(frozen=True, slots=True)
class Place:
    """`place / "mlp"` is a part of it, called `name.mlp`. A rank of `group` has its share; `units` are never cut."""

    take: Take
    name: str
    units: CutUnits
    group: Group

    def __truediv__(self, part: str) -> "Place":
        return replace(self, name=f"{self.name}.{part}" if self.name else part)

    def weight(self, *shape: int, shard_axis: int | None = None, pieces: tuple[Piece, ...] | None = None) -> Loaded:
        """The tensor `name.weight` of this shape, of which a rank has `pieces` along `shard_axis`."""
        return self.take(WeightSpec(f"{self.name}.weight", shape, shard_axis, pieces))

    def bias(self, size: int, pieces: tuple[Piece, ...] | None = None) -> Loaded:
        """The tensor `name.bias`, of which a rank has `pieces`; whole on all ranks without them."""
        return self.take(WeightSpec(f"{self.name}.bias", (size,), None if pieces is None else 0, pieces))
