"""ShortConv (LFM2, Liquid AI 2025): a convolution over a few tokens between two gates, in place of attention."""

from karat.kv.groups import State
from karat.layers.linear import ColumnParallelLinear, RowParallelLinear
from karat.layers.mixer import Mixer, RopeTables
from karat.layers.place import Place
from karat.layers.shards import Cut, part, tree_ends
from karat.ops.api import Cache, Ops, Step, Tensor


class ShortConv(Mixer):
    """out_proj(c * conv(b * x)), where b, c and x are thirds of in_proj's rows; each is [tokens, hidden].

    The convolution reads the last `taps` tokens, channel by channel. With `bias` it and both projections have biases.
    A rank has the channels of its columns of out_proj.
    """

    def __init__(self, place: Place, hidden_size: int, taps: int, *, bias: bool) -> None:
        self.name = place.name
        self.out_proj = RowParallelLinear(place / "out_proj", hidden_size, hidden_size, bias=bias)
        self.cuts = self.out_proj.cuts
        unit, group = place.units[Cut(hidden_size, 1)], place.group
        start, stop = part(tree_ends(hidden_size, unit, group), group)
        own = ((start, stop),) if group.size > 1 else None
        thirds = tuple((third + start, third + stop) for third in (0, hidden_size, 2 * hidden_size))
        self.in_proj = ColumnParallelLinear(
            place / "in_proj", 3 * hidden_size, hidden_size, bias=bias, pieces=thirds if own else None
        )
        self.filters = (place / "conv").filters(hidden_size, taps, own)
        self.bias = (place / "conv").bias(hidden_size, own) if bias else None
        self._channels = stop - start
        self.keeps = State(((taps - 1, self._channels),))

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables) -> Tensor:
        name, shape = self.name, (self._channels,)
        names = f"{name}.before", f"{name}.after", f"{name}.x"
        before, after, x = ops.split(self.in_proj(ops, x), (shape, shape, shape), names=names)
        x = ops.mul(before, x, name=f"{name}.gated_x")
        x = ops.causal_conv(x, self.filters, cache, step, bias=self.bias, name=f"{name}.conv")
        return self.out_proj(ops, ops.mul(after, x, name=f"{name}.gated"))
