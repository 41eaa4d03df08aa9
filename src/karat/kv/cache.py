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

from collections.abc import Sequence

from karat.config import FloatName
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.groups import Keep, groups_of
from karat.ops.api import Cache
from karat.ops.executor import CacheSpec, Executor


def new_cache(
    ops: Executor, keeps: Sequence[Keep], dtype: FloatName, num_blocks: int, *, block_size: int = BLOCK_SIZE
) -> Cache:
    """An empty cache of the size of `cache_spec`."""
    return ops.new_cache(cache_spec(keeps, dtype, num_blocks, block_size=block_size))


def cache_spec(keeps: Sequence[Keep], dtype: FloatName, num_blocks: int, *, block_size: int = BLOCK_SIZE) -> CacheSpec:
    """A cache of `num_blocks` blocks of `block_size` tokens for layers that keep `keeps`.

    All groups share one cache and its blocks. So every layer keeps keys, of one shape; windows may differ.
    """
    groups = groups_of(keeps)
    assert sum(len(group.layers) for group in groups) == len(keeps), "a layer keeps no keys of its own"
    shapes = {(group.keys.kv_heads, group.keys.k_dim, group.keys.v_dim) for group in groups}
    assert len(shapes) == 1, f"one cache for keys of {len(shapes)} shapes"
    kv_heads, k_dim, v_dim = shapes.pop()
    assert k_dim == v_dim, f"one cache for keys of {k_dim} and values of {v_dim} numbers"
    return CacheSpec(
        num_layers=len(keeps),
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=kv_heads,
        head_dim=k_dim,
        dtype=dtype,
    )
