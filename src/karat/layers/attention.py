"""Self-attention with grouped KV heads, rotary positions and a paged cache."""

from karat.config import ModelConfig
from karat.layers.linear import COLUMN, ROW, Linear
from karat.layers.norm import RMSNorm
from karat.layers.weights import Take
from karat.ops.api import Cache, Ops, RopeTable, Step, Tensor


class Attention:
    """One layer's attention. With `qk_norm`, each head of q and k is normalised before it is turned (Qwen3)."""

    def __init__(self, take: Take, name: str, config: ModelConfig, layer: int) -> None:
        self.name = name
        self._layer = layer
        self._head_dim = config.head_dim
        self._scale = config.head_dim**-0.5
        self._window = config.layer_windows[layer]
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj, self.k_proj, self.v_proj = (
            Linear(take, f"{name}.{part}_proj", size, config.hidden_size, bias=config.qkv_bias, shard=COLUMN)
            for part, size in (("q", q_size), ("k", kv_size), ("v", kv_size))
        )
        self.q_norm, self.k_norm = (
            RMSNorm(take, f"{name}.{part}_norm", config.head_dim, config.rms_norm_eps) if config.qk_norm else None
            for part in ("q", "k")
        )
        self.o_proj = Linear(
            take, f"{name}.o_proj", config.hidden_size, q_size, bias=config.o_bias, shard=ROW, unit=config.head_dim
        )

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, rope: RopeTable) -> Tensor:
        parts = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = ops.qkv(
            x,
            (parts[0].weight, parts[1].weight, parts[2].weight),
            None if parts[0].bias is None else (parts[0].bias, parts[1].bias, parts[2].bias),
            head_dim=self._head_dim,
            names=(parts[0].name, parts[1].name, parts[2].name),
        )
        if self.q_norm and self.k_norm:
            q, k = self.q_norm(ops, q), self.k_norm(ops, k)
        q = ops.rope(q, rope, step, name=f"{self.name}.q_rope")
        k = ops.rope(k, rope, step, name=f"{self.name}.k_rope")
        ops.kv_write(k, v, cache, self._layer, step)
        out = ops.paged_attention(
            q, cache, self._layer, step, scale=self._scale, window=self._window, name=f"{self.name}.attention"
        )
        return self.o_proj(ops, out)
