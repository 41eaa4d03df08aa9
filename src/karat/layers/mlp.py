"""The gated feed-forward block (SwiGLU, arXiv 2002.05202)."""

from karat.layers.linear import RowParallelLinear
from karat.layers.merged import GateUpParallelLinear
from karat.layers.mixer import Mixer, RopeTables
from karat.layers.place import Place
from karat.ops.api import Cache, Ops, Step, Tensor


class GatedMLP(Mixer):
    """down(silu(gate(x)) * up(x)); x and the result are [tokens, hidden]."""

    def __init__(self, place: Place, hidden_size: int, inner_size: int, *, bias: bool = False) -> None:
        self.name = place.name
        self.gate_up = GateUpParallelLinear(place, inner_size, hidden_size, bias=bias)
        self.down_proj = RowParallelLinear(place / "down_proj", hidden_size, inner_size, bias=bias)
        self.cuts = self.down_proj.cuts

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables) -> Tensor:
        gate, up = self.gate_up(ops, x)
        return self.down_proj(ops, ops.silu_mul(gate, up, name=f"{self.name}.act"))
