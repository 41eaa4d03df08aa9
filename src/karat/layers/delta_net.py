"""Gated DeltaNet (arXiv 2412.06464): a layer that keeps a matrix for each head instead of the keys of all tokens."""

from dataclasses import dataclass

from karat.kv.groups import State
from karat.layers.linear import ColumnParallelLinear, RowParallelLinear
from karat.layers.mixer import Mixer, RopeTables
from karat.layers.place import Place
from karat.layers.shards import Cut, Piece, own_heads, rows_of
from karat.ops.api import Cache, Ops, Step, Tensor

_EPS = 1e-6  # of the lengths of q and k; a constant of the architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """Sizes for all ranks together. Value heads are a multiple of the key heads.

    `taps` are the tokens that the convolution reads. With `tiled` value head h reads key head h % key_heads, else
    h // (value_heads / key_heads).
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    tiled: bool = False

    def key_head(self, head: int) -> int:
        """The key head that a value head reads."""
        return head % self.key_heads if self.tiled else head // (self.value_heads // self.key_heads)


class GatedDeltaNet(Mixer):
    """The gated delta rule over x [tokens, hidden], between a causal convolution and a norm with a gate.

    With `of_log` the weight A_log is the logarithm of the rates of decay, as its name says; else the rates themselves,
    below 0. With `joined` one matrix, in_proj_ba, has for each key head the rows of b and then those of a. A rank has
    the value heads of its columns of out_proj, and the key heads that these read.
    """

    def __init__(
        self, place: Place, hidden_size: int, shape: DeltaShape, *, eps: float, of_log: bool, joined: bool = False
    ) -> None:
        self.name = place.name
        self._eps, self._of_log = eps, of_log
        value_size = shape.value_heads * shape.value_dim
        self.out_proj = RowParallelLinear(
            place / "out_proj", hidden_size, value_size, bias=False, whole=shape.value_dim
        )
        self.cuts = self.out_proj.cuts
        unit, group = place.units[Cut(value_size, shape.value_dim)] // shape.value_dim, place.group
        heads = own_heads(shape.value_heads, unit, group)
        read = [shape.key_head(head) for head in range(*heads)]
        keys = (min(read, default=0), max(read, default=-1) + 1)
        self._key_heads = tuple(head - keys[0] for head in read)
        own = group.size > 1
        pieces = _rows_of_all(shape, keys, heads) if own else None
        of_heads = (heads,) if own else None
        channels = 2 * shape.key_heads * shape.key_dim + value_size

        def projection(part: str, size: int, pieces: tuple[Piece, ...] | None) -> ColumnParallelLinear:
            return ColumnParallelLinear(place / f"in_proj_{part}", size, hidden_size, bias=False, pieces=pieces)

        parts: tuple[tuple[str, int, tuple[Piece, ...] | None], ...] = (
            ("qkv", channels, pieces),
            ("z", value_size, (rows_of(heads, shape.value_dim),) if own else None),
        )
        if joined:
            parts += (("ba", 2 * shape.value_heads, _b_then_a(shape, heads) if own else None),)
        else:
            parts += (("b", shape.value_heads, of_heads), ("a", shape.value_heads, of_heads))
        self._groups = 0 if not joined else 1 if own else shape.key_heads
        self.projections = tuple(projection(*each) for each in parts)
        self.filters = (place / "conv1d").filters(channels, shape.taps, pieces)
        self.rates = (place / "A_log").values(shape.value_heads, of_heads)
        self.dt_bias = (place / "dt_bias").values(shape.value_heads, of_heads)
        self.norm = (place / "norm").weight(shape.value_dim)
        num_keys, num_heads = keys[1] - keys[0], heads[1] - heads[0]
        of_keys, of_values = (num_keys, shape.key_dim), (num_heads, shape.value_dim)
        self._parts = (of_keys, of_keys, of_values)
        self._factor = shape.key_dim**-0.5
        own_channels = 2 * num_keys * shape.key_dim + num_heads * shape.value_dim
        self.keeps = State(((shape.taps - 1, own_channels), (num_heads, shape.key_dim, shape.value_dim)))

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables) -> Tensor:
        name = self.name
        weights, names = zip(*((each.weight, each.name) for each in self.projections), strict=True)
        qkv, z, b, *rest = ops.linears(x, weights, None, names=names)
        if self._groups:
            shapes = (self._parts[2][:1],) * 2
            b, *rest = ops.split(b, shapes, self._groups, names=(f"{name}.b", f"{name}.a"))
        (a,) = rest
        qkv = ops.causal_conv(qkv, self.filters, cache, step, silu=True, name=f"{name}.conv")
        q, k, v = ops.split(qkv, self._parts, names=(f"{name}.q", f"{name}.k", f"{name}.v"))
        out = ops.delta_rule(
            ops.l2_norm(q, _EPS, self._factor, name=f"{name}.q_normed"),
            ops.l2_norm(k, _EPS, name=f"{name}.k_normed"),
            v,
            ops.decay(a, self.dt_bias, self.rates, self._of_log, name=f"{name}.decay"),
            ops.sigmoid(b, name=f"{name}.beta"),
            cache,
            step,
            key_heads=self._key_heads,
            name=f"{name}.delta",
        )
        out = ops.rms_norm(out, self.norm, self._eps, name=f"{name}.delta_normed")
        return self.out_proj(ops, ops.silu_mul(z, out, name=f"{name}.norm"))


def _rows_of_all(shape: DeltaShape, keys: Piece, heads: Piece) -> tuple[Piece, ...]:
    """The rows of q, of k and of v in in_proj_qkv."""
    q, v, size = rows_of(keys, shape.key_dim), rows_of(heads, shape.value_dim), shape.key_heads * shape.key_dim
    return q, (size + q[0], size + q[1]), (2 * size + v[0], 2 * size + v[1])


def _b_then_a(shape: DeltaShape, heads: Piece) -> tuple[Piece, ...]:
    """The rows of b and then those of a in in_proj_ba, of these value heads, which are grouped by key heads."""
    each = shape.value_heads // shape.key_heads
    found = []
    for first in (0, each):  # in a group
        for group in range(heads[0] // each, -(-heads[1] // each)):
            start, stop = max(heads[0] - group * each, 0), min(heads[1] - group * each, each)
            found.append((2 * group * each + first + start, 2 * group * each + first + stop))
    return tuple(found)
