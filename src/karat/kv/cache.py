"""The memory of the KV cache.

A cache group has num_blocks * block_size slots in each of its layers. A slot holds K and V [kv_heads, head_dim] of one
token (k_dim and v_dim are head_dim here):

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
from karat.kv.groups import Keep, SharedKeys, groups_of
from karat.ops.api import Cache
from karat.ops.executor import CacheSpec, Executor

T = TypeVar("T")


def new_caches(
    ops: Executor,
    keeps: Sequence[Keep],
    dtype: FloatName,
    num_blocks: int | Sequence[int],
    *,
    block_size: int = BLOCK_SIZE,
) -> tuple[Cache, ...]:
    """The cache of each layer, empty, of the sizes of `cache_specs`; None for a layer that reads no keys."""
    specs = cache_specs(keeps, dtype, num_blocks, block_size=block_size)
    held: dict[int, Cache] = {}
    for spec, handles in zip(specs, ops.new_cache(specs), strict=True):
        held.update(zip(spec.layers, handles, strict=True))
    return by_layer(keeps, held)


def by_layer(keeps: Sequence[Keep], held: Mapping[int, T]) -> tuple[T | None, ...]:
    """What each layer reads, of what belongs to layers with keys: a layer with `SharedKeys` reads another's."""
    return tuple(held.get(keep.layer if isinstance(keep, SharedKeys) else layer) for layer, keep in enumerate(keeps))


def cache_specs(
    keeps: Sequence[Keep], dtype: FloatName, num_blocks: int | Sequence[int], *, block_size: int = BLOCK_SIZE
) -> tuple[CacheSpec, ...]:
    """Caches of `block_size` tokens a block for layers that keep `keeps`: num_blocks blocks for each cache group."""
    groups = groups_of(keeps)
    counts = [num_blocks] * len(groups) if isinstance(num_blocks, int) else num_blocks
    return tuple(
        CacheSpec(
            layers=group.layers,
            num_blocks=number,
            block_size=block_size,
            num_kv_heads=group.keys.kv_heads,
            k_dim=group.keys.k_dim,
            v_dim=group.keys.v_dim,
            dtype=dtype,
        )
        for group, number in zip(groups, counts, strict=True)
    )
