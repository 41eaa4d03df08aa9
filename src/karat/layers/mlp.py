"""The gated feed-forward block (SwiGLU, arXiv 2002.05202)."""

from karat.config import ModelConfig
from karat.dist.group import Group
from karat.layers.linear import RowParallelLinear
from karat.layers.merged import GateUpParallelLinear
from karat.layers.shards import Units
from karat.layers.weights import Take
from karat.ops.api import Ops, Tensor


class GatedMLP:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, take: Take, name: str, config: ModelConfig, units: Units, group: Group) -> None:
        self.name = name
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_up = GateUpParallelLinear(take, name, inner, hidden, bias=bias, unit=units.inner, group=group)
        self.down_proj = RowParallelLinear(
            take, f"{name}.down_proj", hidden, inner, bias=bias, unit=units.inner, group=group
        )

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        gate, up = self.gate_up(ops, x)
        return self.down_proj(ops, ops.silu_mul(gate, up, name=f"{self.name}.act"))
