"""What the generators of mistakes read: a model, the tokens of a trace, and the nodes of one layer by role."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from karat.check.model.graph import Graph, Node
from karat.check.model.tokens import Tokens
from karat.check.model.weights import CheckpointWeights
from karat.config import LayerShape, ModelConfig

Params = dict[str, Any]

DEGREES = (2, 4, 8)
CAPS = (15.0, 20.0, 30.0, 50.0)
LINEARS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
ROUTERS = ("mlp.gate", "mlp.router", "router.proj")
_SUMS = ("attention_residual", "mlp_residual", "input_residual", "layer")


@dataclass(frozen=True, eq=False)
class Scope:
    """One model and the tokens of one trace."""

    graph: Graph
    weights: CheckpointWeights
    tokens: Tokens
    degrees: tuple[int, ...] = DEGREES  # numbers of ranks that are possible

    @property
    def config(self) -> ModelConfig:
        return self.graph.config

    def same_part(self, node: Node, other: int) -> Node | None:
        """The part of layer `other` that could stand in for this one; None if it has none with a weight as large."""
        found = self.graph.by_role.get((other, node.role))
        shape_of = self.weights.shape
        fits = found is not None and shape_of(found.params["weight"]) == shape_of(node.params["weight"])
        return found if fits else None


class Layer:
    """The nodes of one layer by role."""

    def __init__(self, graph: Graph, index: int) -> None:
        self.graph = graph
        self.index = index

    @property
    def shape(self) -> LayerShape:
        return self.graph.config.shape(self.index)

    def __contains__(self, role: str) -> bool:
        return (self.index, role) in self.graph.by_role

    @property
    def has_attention(self) -> bool:
        """Whether tokens of the layer see the keys of others; a recurrent layer has a state instead."""
        return "self_attn.scores" in self

    def node(self, role: str) -> Node:
        return self.graph.by_role[self.index, role]

    def roles_of(self, kind: str) -> list[str]:
        """The roles of the layer's nodes of this kind, in order."""
        nodes = self.graph.by_role.items()
        return [role for (layer, role), node in nodes if layer == self.index and node.kind == kind]

    def instead(self, name: str, other: str) -> dict[str, Params]:
        """Edits by role in which the layer reads the result `other` where it reads `name`."""
        nodes = [(role, node) for (layer, role), node in self.graph.by_role.items() if layer == self.index]
        return {
            role: {"inputs": tuple(other if source == name else source for source in node.inputs)}
            for role, node in nodes
            if name in node.inputs
        }

    def edit(self, roles: Mapping[str, Params]) -> dict[str, Params]:
        """Edits by role as edits by name, without the roles that the layer does not have."""
        return {self.node(role).name: params for role, params in roles.items() if role in self}

    @property
    def sums(self) -> tuple[str, ...]:
        """The roles of the sums of x and what a branch gives, in order; the last result may be a product of one."""
        return tuple(role for role in _SUMS if role in self and self.node(role).kind == "add")

    @property
    def before(self) -> str:
        """The name of the layer's input."""
        return self.node(self.sums[0]).inputs[0]

    @property
    def norms(self) -> list[str]:
        """The roles of the norms before and after branches, in order."""
        return [role for role in self.roles_of("norm") if "." not in role]


OfLayer = Callable[[Scope, Layer], Iterator[tuple[str, str, dict[str, Params]]]]  # bug, detail, parameters by role
