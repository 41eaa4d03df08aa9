"""Models with gates, which no family of Karat has yet: a family with a sigmoid gate on what o_proj reads.

The gates are put in where a decoder calls its ops. So they stand in what executors compute, plans record and graphs
note, and no layer knows them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from karat.check.model.graph import Graph, build_graph
from karat.checkpoint.weights import Weight
from karat.config import ModelConfig
from karat.models.decoder import Decoder
from karat.ops.api import Linear, Loaded, Op, Ops, Qkv
from tests.support.weights import weight_of


class Gating(Ops):
    """`inner`, with a gate of what q_proj read. gates: the weights of the gates, by name."""

    def __init__(self, inner: Ops, gates: Mapping[str, Loaded]) -> None:
        self._inner, self._gates = inner, gates
        self._hidden: Any = None

    def apply(self, op: Op[Any]) -> Any:
        if isinstance(op, Qkv):
            self._hidden = op.x
        if isinstance(op, Linear) and op.name.endswith(".self_attn.o_proj"):
            name = op.name.replace("o_proj", "gate_proj")
            gate = self._inner.linear(self._hidden, self._gates[f"{name}.weight"], name=name)
            op = replace(op, x=self._inner.sigmoid_mul(op.x, gate, name=op.name.replace("o_proj", "gated")))
        return self._inner.apply(op)


@contextmanager
def gated(gates: Mapping[str, Loaded]) -> Iterator[None]:
    """Decoders that are called meanwhile have these gates."""
    plain = Decoder.__call__

    def call(self: Decoder, ops: Ops, *args: Any) -> Any:
        return plain(self, Gating(ops, gates), *args)

    with patch.object(Decoder, "__call__", call):
        yield


def gate_weights(config: ModelConfig, stored: str = "F32") -> dict[str, Weight]:
    """The weight [gates, hidden] of each layer's gate: by element in layer 0, then by head, by row, and so on."""
    rng = np.random.Generator(np.random.PCG64(17))
    widths = (config.num_heads * config.head_dim, config.num_heads, 1)
    found = {}
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}.self_attn.gate_proj.weight"
        values = rng.integers(-(2**20), 2**20, (widths[layer % 3], config.hidden_size)) / 2**20
        found[name] = weight_of(values.astype(np.float32), stored, name)
    return found


def gated_graph(config: ModelConfig) -> Graph:
    with gated({name: name for name in gate_weights(config)}):
        return build_graph(config)
