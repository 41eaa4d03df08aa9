"""The gated feed-forward block (SwiGLU, arXiv 2002.05202)."""

from karat.config import ModelConfig
from karat.layers.linear import COLUMN, ROW, Linear
from karat.layers.weights import Take
from karat.ops.api import Ops, Tensor


class GatedMLP:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, take: Take, name: str, config: ModelConfig) -> None:
        self.name = name
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(take, f"{name}.gate_proj", inner, hidden, bias=bias, shard=COLUMN)
        self.up_proj = Linear(take, f"{name}.up_proj", inner, hidden, bias=bias, shard=COLUMN)
        self.down_proj = Linear(take, f"{name}.down_proj", hidden, inner, bias=bias, shard=ROW)

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        gate, up = ops.gate_up(
            x,
            (self.gate_proj.weight, self.up_proj.weight),
            None if self.gate_proj.bias is None else (self.gate_proj.bias, self.up_proj.bias),
            names=(self.gate_proj.name, self.up_proj.name),
        )
        return self.down_proj(ops, ops.silu_mul(gate, up, name=f"{self.name}.act"))
