"""The memory of the KV cache.

The cache has num_blocks * block_size slots in each layer; a slot holds K and V [kv_heads, head_dim] of one token:

    slot            0 … block_size - 1 | block_size … 2 block_size - 1 | …
    block           0                  | 1                             | …

    bytes = layers * slots * 2 * kv_heads * head_dim * bytes of the dtype      (K and V)

The native executor (csrc/contract/kernels.h) stores slots in regions of 256, and rounds the number of slots up to whole
regions. D is head_dim rounded up to 16, e the bytes of a number:

    region 0: layer 0: KV head 0 | K: 16 groups of [head_dim, 16 slots] | V: 256 slots of [D]    |
                       KV head 1 | 256 * head_dim * e bytes              | 256 * D * e bytes      |
                       …
              layer 1: …
    region 1: …

One KV head's part of a region is one run of bytes, which attention reads as a stream. The reference executor has one
array [layers, slots, kv_heads, head_dim] for K and one for V.
"""

from karat.config import FloatName, ModelConfig
from karat.kv.blocks import BLOCK_SIZE
from karat.ops.api import Cache
from karat.ops.executor import CacheSpec, Executor


def new_cache(
    ops: Executor,
    config: ModelConfig,
    dtype: FloatName,
    num_blocks: int,
    *,
    block_size: int = BLOCK_SIZE,
    num_kv_heads: int | None = None,
) -> Cache:
    """An empty cache of the size of `cache_spec`."""
    return ops.new_cache(cache_spec(config, dtype, num_blocks, block_size=block_size, num_kv_heads=num_kv_heads))


def cache_spec(
    config: ModelConfig,
    dtype: FloatName,
    num_blocks: int,
    *,
    block_size: int = BLOCK_SIZE,
    num_kv_heads: int | None = None,
) -> CacheSpec:
    """A cache of `num_blocks` blocks of `block_size` tokens in every layer.

    `num_kv_heads` are the KV heads that are held (None: all of the model).
    """
    return CacheSpec(
        num_layers=config.num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=config.num_kv_heads if num_kv_heads is None else num_kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
    )
