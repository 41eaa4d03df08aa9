"""Place: a layer's name in the model, the source of its weights, and the rank that it is built for."""

from dataclasses import dataclass

from karat.checkpoint.weights import WeightSpec
from karat.layers.shards import CutUnits, Piece
from karat.layers.weights import Take
from karat.ops.api import Loaded
from karat.ranks.group import Group


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a layer; `place / "mlp"` is the place of its part `name.mlp`.

    `take` gives a weight. The layer is built for this rank of `group`. `units` are never cut apart.
    """

    take: Take
    name: str
    units: CutUnits
    group: Group

    def __truediv__(self, part: str) -> "Place":
        return Place(self.take, f"{self.name}.{part}" if self.name else part, self.units, self.group)

    def weight(
        self,
        *shape: int,
        shard_axis: int | None = None,
        pieces: tuple[Piece, ...] | None = None,
        gathered: bool = False,
    ) -> Loaded:
        """The tensor `name.weight` of this (whole) shape; a rank gets `pieces` along `shard_axis`. Rows of one that is
        `gathered` are read by token id and nothing else."""
        return self.take(WeightSpec(f"{self.name}.weight", shape, shard_axis, pieces, gathered))

    def values(self, size: int, pieces: tuple[Piece, ...] | None = None) -> Loaded:
        """The tensor `name` [size], which has no suffix; a rank gets `pieces` of it, or all of it without pieces."""
        return self.take(WeightSpec(self.name, (size,), None if pieces is None else 0, pieces))

    def filters(self, channels: int, taps: int, pieces: tuple[Piece, ...] | None = None) -> Loaded:
        """The tensor `name.weight` of a convolution, a filter for each channel, as one vector [channels * taps].

        Folders have it as [channels, 1, taps], GGUF as [channels, taps]. A rank gets the channels in `pieces`.
        """
        own = None if pieces is None else tuple((start * taps, stop * taps) for start, stop in pieces)
        stored = ((channels, 1, taps), (channels, taps))
        axis = None if pieces is None else 0
        return self.take(WeightSpec(f"{self.name}.weight", (channels * taps,), axis, own, stored=stored))

    def bias(self, size: int, pieces: tuple[Piece, ...] | None = None) -> Loaded:
        """The tensor `name.bias` [size]; a rank gets `pieces` of it, or all of it without pieces."""
        return self.take(WeightSpec(f"{self.name}.bias", (size,), None if pieces is None else 0, pieces))
