"""What each layer gets of the tokens besides x, and the branch that reads it (Gemma 4's per-layer embeddings)."""

from dataclasses import dataclass, replace

import numpy as np

from karat.layers.linear import ColumnParallelLinear
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.layers.vocabulary import VocabParallelEmbedding
from karat.ops.api import Ops, Step, Tensor
from karat.ranks.group import SINGLE


@dataclass(frozen=True, slots=True)
class InputSizes:
    """A table of so many tokens, and `size` numbers of a token for each layer."""

    vocab_size: int
    size: int


class LayerInputs:
    """For each layer (norm(projection(x) * hidden^-½) + table[token] * size^½) * 2^-½: [tokens, size].

    x [tokens, hidden] is what the first layer gets. A row of the table, and of the projection, has the numbers of all
    layers, one after the other. Rows of the table are gathered, so it stays in its file. Every rank computes all.
    """

    def __init__(self, place: Place, hidden_size: int, num_layers: int, sizes: InputSizes, eps: float) -> None:
        width, alone = num_layers * sizes.size, replace(place, group=SINGLE)
        self.name = place.name
        self.table = VocabParallelEmbedding(
            alone / "embed_tokens_per_layer",
            sizes.vocab_size,
            width,
            is_head=False,
            scale=float(np.float32(sizes.size**0.5)),
        )
        self.projection = ColumnParallelLinear(
            alone / "per_layer_model_projection", width, hidden_size, bias=False, pieces=None
        )
        self.norm = RMSNorm(alone / "per_layer_projection_norm", sizes.size, eps)
        self._factor, self._shapes = hidden_size**-0.5, ((sizes.size,),) * num_layers

    def __call__(self, ops: Ops, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        name, projection = f"{self.name}.layer_inputs", self.projection
        projected = ops.scale(projection(ops, x), self._factor, name=f"{projection.name}_scaled")
        both = ops.add(self.norm(ops, projected), self.table(ops, step), name=f"{name}_sum")
        names = tuple(f"{name}.{layer}" for layer in range(len(self._shapes)))
        return ops.split(ops.scale(both, 2**-0.5, name=name), self._shapes, names=names)


class InputBranch:
    """norm(projection(gelu(gate(x)) * given)): x and it are [tokens, hidden], given is [tokens, size].

    Every rank computes all of it.
    """

    def __init__(self, layer: Place, hidden_size: int, size: int, eps: float) -> None:
        self.name = f"{layer.name}.per_layer_input"
        self.gate = ColumnParallelLinear(layer / "per_layer_input_gate", size, hidden_size, bias=False, pieces=None)
        self.projection = ColumnParallelLinear(
            layer / "per_layer_projection", hidden_size, size, bias=False, pieces=None
        )
        self.norm = RMSNorm(layer / "post_per_layer_input_norm", hidden_size, eps)

    def __call__(self, ops: Ops, x: Tensor, given: Tensor) -> Tensor:
        inner = ops.gelu_mul(self.gate(ops, x), given, name=f"{self.name}_act")
        return self.norm(ops, self.projection(ops, inner))
