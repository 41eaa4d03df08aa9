"""Column-parallel layers of the same input, computed together. Sizes are the whole layer's."""

from karat.layers.linear import ColumnParallelLinear
from karat.layers.place import Place
from karat.layers.shards import Cut, own_heads, own_kv_heads, part, rows_of, tree_ends
from karat.ops.api import Ops, Tensor


class QKVParallelLinear:
    """q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim] of a rank; `place` is the attention's.

    There are those of `parts` alone, "q" the first. q_proj has `rows_per_head` rows for each head (None: head_dim): q
    has as many numbers, in pieces of head_dim.
    """

    def __init__(
        self,
        place: Place,
        hidden_size: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        bias: bool,
        rows_per_head: int | None = None,
        parts: str = "qkv",
    ) -> None:
        self._head_dim = head_dim
        rows_per_head = head_dim if rows_per_head is None else rows_per_head
        q_pieces = kv_pieces = None
        unit, group = place.units[Cut(num_heads * head_dim, head_dim)] // head_dim, place.group
        if group.size > 1:
            q_pieces = (rows_of(own_heads(num_heads, unit, group), rows_per_head),)
            kv_pieces = (rows_of(own_kv_heads(num_heads, num_kv_heads, unit, group), head_dim),)
        q_size, kv_size = num_heads * rows_per_head, num_kv_heads * head_dim
        sizes = {"q": (q_size, q_pieces), "k": (kv_size, kv_pieces), "v": (kv_size, kv_pieces)}
        self.projections = tuple(
            ColumnParallelLinear(place / f"{part}_proj", sizes[part][0], hidden_size, bias=bias, pieces=sizes[part][1])
            for part in parts
        )

    def __call__(self, ops: Ops, x: Tensor) -> tuple[Tensor, ...]:
        each = self.projections
        return ops.qkv(
            x,
            tuple(one.weight for one in each),
            None if each[0].bias is None else tuple(one.bias for one in each),
            head_dim=self._head_dim,
            names=tuple(one.name for one in each),
        )


class GateUpParallelLinear:
    """gate and up [tokens, inner] for the columns of down_proj that a rank holds; `place` is the MLP's."""

    def __init__(self, place: Place, inner_size: int, hidden_size: int, *, bias: bool) -> None:
        unit, group = place.units[Cut(inner_size, 1)], place.group
        pieces = (part(tree_ends(inner_size, unit, group), group),) if group.size > 1 else None
        self.gate_proj, self.up_proj = (
            ColumnParallelLinear(place / f"{which}_proj", inner_size, hidden_size, bias=bias, pieces=pieces)
            for which in ("gate", "up")
        )

    def __call__(self, ops: Ops, x: Tensor) -> tuple[Tensor, ...]:
        gate, up = self.gate_proj, self.up_proj
        return ops.gate_up(
            x,
            (gate.weight, up.weight),
            None if gate.bias is None else (gate.bias, up.bias),
            names=(gate.name, up.name),
        )
