"""Self-attention with grouped KV heads, rotary positions and a paged cache."""

from collections.abc import Mapping
from dataclasses import dataclass

from karat.config import ModelConfig, RopeConfig
from karat.kv.groups import Keys
from karat.layers.linear import RowParallelLinear
from karat.layers.merged import QKVParallelLinear
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.layers.shards import own_groups, own_kv_heads
from karat.ops.api import Cache, Ops, RopeTable, Step, Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """How heads of `head_dim` are turned by position. Layers with equal rotations share a table."""

    rope: RopeConfig
    head_dim: int


RopeTables = Mapping[Rotation, RopeTable]


class Attention:
    """One layer's attention over x [tokens, hidden], with the heads of `config`; result [tokens, hidden].

    `rope` rotates q and k by position. With a `window` a token sees that many keys, itself included. With `qk_norm_eps`
    each head of q and k is normalised (RMSNorm) before the rotation.
    """

    def __init__(
        self,
        place: Place,
        config: ModelConfig,
        layer: int,
        *,
        rope: RopeConfig,
        window: int | None = None,
        qkv_bias: bool = False,
        o_bias: bool = False,
        qk_norm_eps: float | None = None,
    ) -> None:
        self.name = place.name
        self._layer = layer
        self._scale = config.head_dim**-0.5
        num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.rotation = Rotation(rope, head_dim)
        self.qkv = QKVParallelLinear(
            place, config.hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, bias=qkv_bias
        )
        unit = place.units.heads
        start, stop = own_kv_heads(num_heads, num_kv_heads, unit, place.group)
        self.keeps = Keys(stop - start, head_dim, head_dim, window)
        self._groups = own_groups(num_heads, num_kv_heads, unit, place.group)
        self.q_norm, self.k_norm = (
            None if qk_norm_eps is None else RMSNorm(place / f"{part}_norm", head_dim, qk_norm_eps)
            for part in ("q", "k")
        )
        self.o_proj = RowParallelLinear(
            place / "o_proj", config.hidden_size, num_heads * head_dim, bias=o_bias, unit=unit * head_dim
        )

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables) -> Tensor:
        q, k, v = self.qkv(ops, x)
        if self.q_norm and self.k_norm:
            q, k = self.q_norm(ops, q), self.k_norm(ops, k)
        table = ropes[self.rotation]
        q = ops.rope(q, table, step, name=f"{self.name}.q_rope")
        k = ops.rope(k, table, step, name=f"{self.name}.k_rope")
        ops.kv_write(k, v, cache, self._layer, step)
        out = ops.paged_attention(
            q,
            cache,
            self._layer,
            step,
            scale=self._scale,
            window=self.keeps.window,
            name=f"{self.name}.attention",
            groups=self._groups,
        )
        return self.o_proj(ops, out)
