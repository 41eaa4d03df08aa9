"""Linear layers that tensor parallelism cuts by output or input features. Sizes are the whole layer's."""

from karat.layers.place import Place
from karat.layers.shards import Cut, Piece, own_leaves, part, tree_ends
from karat.ops.api import Loaded, Ops, Tensor

COLUMN, ROW = 0, 1  # of a weight [out_features, in_features]


class ColumnParallelLinear:
    """x @ weight.T + bias. A rank holds the output features in `pieces` (None: all) and computes only those."""

    def __init__(
        self, place: Place, out_features: int, in_features: int, *, bias: bool, pieces: tuple[Piece, ...] | None
    ) -> None:
        self.name = place.name
        self.weight: Loaded = place.weight(out_features, in_features, shard_axis=COLUMN, pieces=pieces)
        self.bias: Loaded | None = place.bias(out_features, pieces) if bias else None

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias, name=self.name)


class RowParallelLinear:
    """x @ weight.T + bias. A rank holds the input features of its subtree, and all ranks get the whole sum.

    `whole` neighbouring input features belong together. Every rank holds the whole bias, which is added once, to the
    whole sum. `cuts` has the weight's name and its cut.
    """

    def __init__(self, place: Place, out_features: int, in_features: int, *, bias: bool, whole: int = 1) -> None:
        self.name = place.name
        cut = Cut(in_features, whole)
        self.cuts = {f"{place.name}.weight": cut}
        unit, group = place.units[cut], place.group
        self._leaves = own_leaves(in_features, unit, group)
        self._group = group if group.size > 1 else None
        pieces = (part(tree_ends(in_features, unit, group), group),) if group.size > 1 else None
        self.weight: Loaded = place.weight(out_features, in_features, shard_axis=ROW, pieces=pieces)
        self.bias: Loaded | None = place.bias(out_features) if bias else None

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias, leaves=self._leaves, group=self._group, name=self.name)
