"""Self-attention with grouped KV heads, rotary positions and a paged cache."""

from karat.config import ModelConfig
from karat.dist.group import Group
from karat.layers.linear import RowParallelLinear
from karat.layers.merged import QKVParallelLinear
from karat.layers.norm import RMSNorm
from karat.layers.shards import Units, own_groups, own_kv_heads
from karat.layers.weights import Take
from karat.ops.api import Cache, Ops, RopeTable, Step, Tensor


class Attention:
    """One layer's attention. With `qk_norm`, each head of q and k is normalised before it is turned (Qwen3)."""

    def __init__(self, take: Take, name: str, config: ModelConfig, layer: int, units: Units, group: Group) -> None:
        self.name = name
        self._layer = layer
        self._scale = config.head_dim**-0.5
        self._window = config.layer_windows[layer]
        self.qkv = QKVParallelLinear(
            take, name, config.hidden_size, num_heads=config.num_heads, num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim, bias=config.qkv_bias, unit=units.heads, group=group,
        )  # fmt: skip
        start, stop = own_kv_heads(config.num_heads, config.num_kv_heads, units.heads, group)
        self.num_kv_heads = stop - start  # of the cache
        self._groups = own_groups(config.num_heads, config.num_kv_heads, units.heads, group)
        self.q_norm, self.k_norm = (
            RMSNorm(take, f"{name}.{part}_norm", config.head_dim, config.rms_norm_eps) if config.qk_norm else None
            for part in ("q", "k")
        )
        self.o_proj = RowParallelLinear(
            take, f"{name}.o_proj", config.hidden_size, config.num_heads * config.head_dim, bias=config.o_bias,
            unit=units.heads * config.head_dim, group=group,
        )  # fmt: skip

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, rope: RopeTable) -> Tensor:
        q, k, v = self.qkv(ops, x)
        if self.q_norm and self.k_norm:
            q, k = self.q_norm(ops, q), self.k_norm(ops, k)
        q = ops.rope(q, rope, step, name=f"{self.name}.q_rope")
        k = ops.rope(k, rope, step, name=f"{self.name}.k_rope")
        ops.kv_write(k, v, cache, self._layer, step)
        out = ops.paged_attention(
            q, cache, self._layer, step, scale=self._scale, window=self._window, name=f"{self.name}.attention",
            groups=self._groups,
        )  # fmt: skip
        return self.o_proj(ops, out)
