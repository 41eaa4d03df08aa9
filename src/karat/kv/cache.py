"""The memory of the KV cache, and of states.

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

A state (karat.kv.states) has slots of its own: one holds a layer's arrays of one sequence, whatever its length.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from karat.config import FloatName
from karat.kv import groups
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.groups import Keep, SharedKeys, groups_of
from karat.ops.api import Cache, State
from karat.ops.executor import CacheSpec, Executor, StateSpec

T = TypeVar("T")


def new_caches(
    ops: Executor,
    keeps: Sequence[Keep],
    dtype: FloatName,
    num_blocks: int | Sequence[int],
    *,
    block_size: int = BLOCK_SIZE,
    num_states: int = 0,
) -> tuple[Cache | State, ...]:
    """What each layer keeps, empty: a cache of the sizes of `cache_specs`, or a state with `num_states` slots.

    None for a layer that keeps nothing.
    """
    specs = cache_specs(keeps, dtype, num_blocks, block_size=block_size)
    held: dict[int, Cache | State] = {}
    for spec, handles in zip(specs, ops.new_cache(specs), strict=True):
        held.update(zip(spec.layers, handles, strict=True))
    for state in state_specs(keeps, num_states):
        held.update(zip(state.layers, ops.new_states(state), strict=True))
    return by_layer(keeps, held)


def by_layer(keeps: Sequence[Keep], held: Mapping[int, T]) -> tuple[T | None, ...]:
    """What each layer reads, of what belongs to layers with keys: a layer with `SharedKeys` reads another's."""
    return tuple(held.get(keep.layer if isinstance(keep, SharedKeys) else layer) for layer, keep in enumerate(keeps))


def state_specs(keeps: Sequence[Keep], num_slots: int) -> tuple[StateSpec, ...]:
    """The states of layers that keep some, with so many slots: one spec for all that keep arrays of the same shapes."""
    layers: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for layer, keep in enumerate(keeps):
        if isinstance(keep, groups.State):
            layers.setdefault(keep.shapes, []).append(layer)
    return tuple(
        StateSpec(layers=tuple(members), num_slots=num_slots, shapes=shapes) for shapes, members in layers.items()
    )


def cache_specs(
    keeps: Sequence[Keep], dtype: FloatName, num_blocks: int | Sequence[int], *, block_size: int = BLOCK_SIZE
) -> tuple[CacheSpec, ...]:
    """Caches of `block_size` tokens a block for layers that keep `keeps`: num_blocks blocks for each cache group."""
    found = groups_of(keeps)
    counts = [num_blocks] * len(found) if isinstance(num_blocks, int) else num_blocks
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
        for group, number in zip(found, counts, strict=True)
    )
