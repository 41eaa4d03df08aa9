"""Blocks: the layers of a decoder, with their parts in the order of computation."""

from dataclasses import dataclass

from karat.kv.groups import Keep
from karat.layers.attention import Attention, RopeTables, Rotation
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.ops.api import Cache, Ops, Step, Tensor


@dataclass(frozen=True, slots=True)
class PreNormBlock:
    """x + attention(norm(x)), then x + mlp(norm(x)); x is [tokens, hidden]."""

    name: str
    input_layernorm: RMSNorm
    self_attn: Attention
    post_attention_layernorm: RMSNorm
    mlp: GatedMLP

    @property
    def keeps(self) -> Keep:
        """What a later step needs of this one."""
        return self.self_attn.keeps

    @property
    def rotations(self) -> tuple[Rotation, ...]:
        """The RoPE tables that it takes."""
        return (self.self_attn.rotation,)

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables) -> Tensor:
        h = self.self_attn(ops, self.input_layernorm(ops, x), step, cache, ropes)
        x = ops.add(x, h, name=f"{self.name}.attention_residual")
        h = self.mlp(ops, self.post_attention_layernorm(ops, x))
        return ops.add(x, h, name=self.name)
