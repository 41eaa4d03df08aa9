"""The gated feed-forward block (SwiGLU or GeGLU, arXiv 2002.05202)."""

from typing import Literal

from karat.layers.linear import RowParallelLinear
from karat.layers.merged import GateUpParallelLinear
from karat.layers.mixer import Mixer, RopeTables
from karat.layers.place import Place
from karat.ops.api import Cache, Ops, Step, Tensor


class GatedMLP(Mixer):
    """down(activation(gate(x)) * up(x)); x and the result are [tokens, hidden]. gelu is that by tanh (`GeluMul`)."""

    def __init__(
        self,
        place: Place,
        hidden_size: int,
        inner_size: int,
        *,
        bias: bool = False,
        activation: Literal["silu", "gelu"] = "silu",
    ) -> None:
        self.name = place.name
        self._activation = activation
        self.gate_up = GateUpParallelLinear(place, inner_size, hidden_size, bias=bias)
        self.down_proj = RowParallelLinear(place / "down_proj", hidden_size, inner_size, bias=bias)
        self.cuts = self.down_proj.cuts

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables) -> Tensor:
        gate, up = self.gate_up(ops, x)
        times = ops.silu_mul if self._activation == "silu" else ops.gelu_mul
        return self.down_proj(ops, times(gate, up, name=f"{self.name}.act"))
