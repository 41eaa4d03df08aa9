"""The memory that blocks of K and V lie in."""

from karat.config import FloatName, ModelConfig
from karat.kv.blocks import BLOCK_SIZE
from karat.ops.api import Cache, CacheSpec, Ops


def new_cache(
    ops: Ops,
    config: ModelConfig,
    dtype: FloatName,
    num_blocks: int,
    *,
    block_size: int = BLOCK_SIZE,
    num_kv_heads: int | None = None,
) -> Cache:
    """Room for `num_blocks` blocks of `block_size` tokens in every layer; num_kv_heads: those of a rank (None: all)."""
    spec = CacheSpec(
        num_layers=config.num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=config.num_kv_heads if num_kv_heads is None else num_kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
    )
    return ops.new_cache(spec)
