"""The type of a fault, and the parts of a transformers model that faults patch."""

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import nn

from tools.zoo.models import Subject

Fault = Callable[[Subject, ExitStack], bool | None]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the catalogue: the fault, the settings that a model needs for it, and the part of a run.

    caches: the faults of a cache (tools.zoo.caches), one of which a run has; cached: a run keeps states in one, which
    hybrids else do without.
    """

    bug: str
    fault: Fault
    draw: Mapping[str, Any]
    part: str = ""
    caches: tuple[str, ...] = ()
    cached: bool = False

    @property
    def title(self) -> str:
        return f"{self.bug} {self.part}" if self.part else self.bug


def patch_module(subject: Subject, stack: ExitStack, name: str, replacement: Any) -> Any:
    """Replace a function of the model's source file until the stack closes; returns the original."""
    source = sys.modules[type(subject.hf.model).__module__]
    original = getattr(source, name)
    setattr(source, name, replacement)
    stack.callback(setattr, source, name, original)
    return original


def layers(subject: Subject) -> list[Any]:
    """All layers, or one at random."""
    every = list(subject.hf.model.layers)
    return every if subject.rng.random() < 0.6 else [subject.rng.choice(every)]


def linears(layer: Any) -> dict[str, nn.Linear]:
    a, m = layer.self_attn, layer.mlp
    return {
        "q": a.q_proj,
        "k": a.k_proj,
        "v": a.v_proj,
        "o": a.o_proj,
        "gate": m.gate_proj,
        "up": m.up_proj,
        "down": m.down_proj,
    }


def replace_linear(layer: Any, name: str, module: nn.Module) -> None:
    owner = layer.self_attn if name in "qkvo" else layer.mlp
    setattr(owner, f"{name}_proj", module)
