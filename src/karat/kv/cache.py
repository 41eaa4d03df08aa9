"""The memory of the KV cache.

The cache has num_blocks * block_size slots in each layer; a slot holds K and V [kv_heads, head_dim] of one token
(k_dim and v_dim are head_dim here):

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
array [slots, kv_heads, k_dim] for K of each layer and one [slots, kv_heads, v_dim] for V.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from karat.config import FloatName
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.groups import Keep, Keys, SharedKeys, groups_of
from karat.ops.api import Cache
from karat.ops.executor import CacheSpec, Executor

T = TypeVar("T")


def new_caches(
    ops: Executor, keeps: Sequence[Keep], dtype: FloatName, num_blocks: int, *, block_size: int = BLOCK_SIZE
) -> tuple[Cache, ...]:
    """The cache of each layer, empty, of the size of `cache_spec`; None for a layer that reads no keys."""
    spec = cache_spec(keeps, dtype, num_blocks, block_size=block_size)
    (held,) = ops.new_cache([spec])
    return by_layer(keeps, dict(zip(spec.layers, held, strict=True)))


def by_layer(keeps: Sequence[Keep], held: Mapping[int, T]) -> tuple[T | None, ...]:
    """What each layer reads, of what belongs to layers with keys: a layer with `SharedKeys` reads another's."""
    return tuple(held.get(keep.layer if isinstance(keep, SharedKeys) else layer) for layer, keep in enumerate(keeps))


def cache_spec(keeps: Sequence[Keep], dtype: FloatName, num_blocks: int, *, block_size: int = BLOCK_SIZE) -> CacheSpec:
    """A cache of `num_blocks` blocks of `block_size` tokens for layers that keep `keeps`.

    All groups share one cache and its blocks. So all keys have one shape; windows may differ.
    """
    shapes = {(group.keys.kv_heads, group.keys.k_dim, group.keys.v_dim) for group in groups_of(keeps)}
    assert len(shapes) == 1, f"one cache for keys of {len(shapes)} shapes"
    kv_heads, k_dim, v_dim = shapes.pop()
    return CacheSpec(
        layers=tuple(layer for layer, keep in enumerate(keeps) if isinstance(keep, Keys)),
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=kv_heads,
        k_dim=k_dim,
        v_dim=v_dim,
        dtype=dtype,
    )
