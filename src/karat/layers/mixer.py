"""Mixer: what a branch of a block computes. Attention, MLP, experts and recurrences have one signature."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from karat.config import RopeConfig
from karat.kv.groups import Keep
from karat.layers.shards import Cut
from karat.ops.api import Cache, Ops, RopeTable, Step, Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """How heads of `head_dim` are turned by position, and grow with it. Layers with equal rotations share a table."""

    rope: RopeConfig
    head_dim: int
    growth: float = 0.0


RopeTables = Mapping[Rotation, RopeTable]


class Mixer(ABC):
    """A function of x [tokens, hidden] and of what the layer keeps; the result is [tokens, hidden].

    name       its Hugging Face module path
    keeps      what a later step needs of this one (None: nothing)
    rotations  the RoPE tables that it takes from `ropes`
    cuts       its row-parallel weights by name: what ranks cut, and what they may not

    `cache` is the layer's, and means nothing to a mixer that keeps nothing.
    """

    name: str
    keeps: Keep = None
    rotations: tuple[Rotation, ...] = ()
    cuts: Mapping[str, Cut] = MappingProxyType({})

    @abstractmethod
    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables) -> Tensor:
        """Compute the step's rows."""
