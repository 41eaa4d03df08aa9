"""Caches that lose, misplace or change keys and values."""

from contextlib import ExitStack
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from tools.zoo.fault import Fault, patch_module
from tools.zoo.models import Subject

# What is in slots, and what a type makes of it.
CACHE_FAULTS = (
    "not-written",
    "late",
    "slot-late",
    "restart",
    "frozen",
    "exchanged",
    "next-layer",
    "decode-over",
    "decode-lost-v",
)
TYPES = ("float16", "bfloat16")


class FaultyCache(DynamicCache):
    """A cache with one of these faults, or one that keeps its numbers in one of the types."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.first: dict[int, int] = {}
        self.prompt: dict[int, int] = {}  # tokens before the first step of one token

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int, *args: Any, **kwargs: Any) -> Any:
        begin = self.get_seq_length(layer)
        keys, values = super().update(key, value, layer, *args, **kwargs)
        self.first.setdefault(layer, key.shape[2])
        if self.fault == "exchanged":
            return values, keys
        if self.fault in TYPES:
            return tuple(x.to(getattr(torch, self.fault)).float() for x in (keys, values))
        if begin == 0 and self.fault != "slot-late":
            return keys, values
        stored = self.layers[layer]
        new = key.shape[2]
        match self.fault:
            case "not-written":
                keys, values = keys.clone(), values.clone()
                keys[:, :, begin:] = 0
                values[:, :, begin:] = 0
                stored.keys, stored.values = keys, values
            case "late":
                keys, values = keys.clone(), values.clone()
                keys[:, :, begin:] = 0
                values[:, :, begin:] = 0
            case "slot-late":
                keys = torch.cat((torch.zeros_like(keys[:, :, :1]), keys[:, :, :-1]), dim=2)
                values = torch.cat((torch.zeros_like(values[:, :, :1]), values[:, :, :-1]), dim=2)
            case "restart" | "frozen":
                slot = 0 if self.fault == "restart" else self.first[layer]
                for whole, part in ((keys, key), (values, value)):
                    whole[:, :, begin:] = 0
                    whole[:, :, slot : slot + new] = part
                stored.keys, stored.values = keys, values
            case "next-layer":
                if layer + 1 < len(self.layers):
                    theirs = self.layers[layer + 1]
                    keys = torch.cat((theirs.keys[:, :, :begin], key), dim=2)
                    values = torch.cat((theirs.values[:, :, :begin], value), dim=2)
            case "decode-over" | "decode-lost-v" if new == 1:
                slot = self.prompt.setdefault(layer, begin) - 1
                values[:, :, begin:] = 0
                if self.fault == "decode-over":
                    keys[:, :, begin:] = 0
                    keys[:, :, slot : slot + 1], values[:, :, slot : slot + 1] = key, value
                stored.keys, stored.values = keys, values
        return keys, values


def from_the_runner(subject: Subject, stack: ExitStack) -> None:
    """The fault is a cache, which the runner makes."""


def k_of_cache(*, turned: bool) -> Fault:
    """The cache keeps k as it was before RoPE; turned: as RoPE makes it of what is turned already."""

    def fault(subject: Subject, stack: ExitStack) -> None:
        kept: dict[str, torch.Tensor] = {}

        def turn(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **rest: Any) -> Any:
            q, once = right(q, k, cos, sin, **rest)
            kept["k"] = right(once, once, cos, sin, **rest)[0] if turned else k
            return q, once

        right = patch_module(subject, stack, "apply_rotary_pos_emb", turn)
        update = DynamicCache.update

        def storing(cache: Any, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return update(cache, kept["k"], value, *args, **kwargs)

        DynamicCache.update = storing
        stack.callback(setattr, DynamicCache, "update", update)

    return fault
