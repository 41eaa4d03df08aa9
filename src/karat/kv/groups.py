"""What each layer keeps of the tokens it has seen, and the cache groups that follow. Bookkeeping only, without arrays.

layer     keeps                           group
0         Keys(2, 128, 128, window 512)   0
1         Keys(2, 128, 128, window 512)   0
2         Keys(1, 256, 256, window None)  1
3         State(((16, 128, 128),))        –
4         SharedKeys(0)                   reads what layer 0 keeps
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from karat.config import FLOAT_BYTES, FloatName


@dataclass(frozen=True, slots=True)
class Keys:
    """K [kv_heads, k_dim] and V [kv_heads, v_dim] of every token that a later token may see.

    A token sees the last `window` tokens, itself included; None means all. Sizes are those of one rank; a rank of a
    degree that a model cannot have may have no KV heads.
    """

    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None

    def __post_init__(self) -> None:
        assert self.kv_heads >= 0 and self.k_dim > 0 and self.v_dim > 0, f"{self}"
        assert self.window is None or self.window > 0, f"{self}"


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """Nothing of its own: the layer reads the K and V that layer `layer` keeps, which stands before it."""

    layer: int


@dataclass(frozen=True, slots=True)
class State:
    """Arrays of these shapes for every sequence, in the compute dtype. A step reads and overwrites them."""

    shapes: tuple[tuple[int, ...], ...]


Keep = Keys | SharedKeys | State | None  # None: the layer needs only the tokens of the step


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that keep the same: one block table of a sequence serves all. `layers` are numbers, in order."""

    keys: Keys
    layers: tuple[int, ...]


def groups_of(keeps: Sequence[Keep]) -> tuple[CacheGroup, ...]:
    """The cache groups of a model whose layer i keeps `keeps[i]`, in order of their first layers.

    Layers with equal `Keys` are one group, neighbours or not. A layer that keeps no keys of its own is in none.
    """
    layers: dict[Keys, list[int]] = {}
    for layer, keep in enumerate(keeps):
        if isinstance(keep, Keys):
            layers.setdefault(keep, []).append(layer)
        elif isinstance(keep, SharedKeys):
            owns = 0 <= keep.layer < layer and isinstance(keeps[keep.layer], Keys)
            assert owns, f"layer {layer} reads the keys of layer {keep.layer}, which keeps none before it"
    return tuple(CacheGroup(keys, tuple(members)) for keys, members in layers.items())


def windows_of(keeps: Sequence[Keep]) -> tuple[int | None, ...]:
    """The window of each cache group, in tokens; None sees all."""
    return tuple(group.keys.window for group in groups_of(keeps))


def keys_read(keeps: Sequence[Keep]) -> tuple[Keys | None, ...]:
    """The keys that each layer reads: its own or another layer's."""
    read = (keeps[keep.layer] if isinstance(keep, SharedKeys) else keep for keep in keeps)
    return tuple(keep if isinstance(keep, Keys) else None for keep in read)


def bytes_of_sequence(keeps: Sequence[Keep], dtype: FloatName, num_tokens: int) -> int:
    """Bytes of K and V that a later token sees of a sequence of `num_tokens` tokens, over all layers."""
    return sum(
        bytes_per_token([keep], dtype) * min(num_tokens, keep.window or num_tokens)
        for keep in keeps
        if isinstance(keep, Keys)
    )


def bytes_of_state(keeps: Sequence[Keep], dtype: FloatName) -> int:
    """Bytes of the states of one sequence over all layers, once."""
    numbers = sum(prod(shape) for keep in keeps if isinstance(keep, State) for shape in keep.shapes)
    return numbers * FLOAT_BYTES[dtype]


def bytes_per_token(keeps: Sequence[Keep], dtype: FloatName) -> int:
    """Bytes of K and V of one token over all layers."""
    numbers = sum(keep.kv_heads * (keep.k_dim + keep.v_dim) for keep in keeps if isinstance(keep, Keys))
    return numbers * FLOAT_BYTES[dtype]
