"""A model as a list of nodes. An executor that computes nothing runs the model's definition once and notes every op."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from karat.check.model.kinds import Kind
from karat.check.model.right import attention, elementwise, experts, linear, norm, recurrence, rope, rows
from karat.checkpoint.weights import WeightSpec
from karat.config import LayerShape, ModelConfig
from karat.errors import UsageError
from karat.kv.cache import by_layer
from karat.layers.shards import Wholes
from karat.ops import api
from karat.ops.api import Linears, Op, Ops, Single, Table, Tensor, table_of

Edits = Mapping[str, Mapping[str, Any]]  # node name to the parameters that are replaced

_PARTS = (rows, norm, linear, rope, attention, elementwise, experts, recurrence)
KINDS: Mapping[str, Kind] = {kind.name: kind for part in _PARTS for kind in part.KINDS}
_OF_OPS = {kind.of: kind for kind in KINDS.values() if kind.of is not None}


@dataclass(frozen=True, slots=True)
class Node:
    """One named result.

    params: what the functions of karat.check.model.right need; mistakes: what karat.check.mistakes changes in them.
    Raises UsageError for a parameter that the kind does not have.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    mistakes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = KINDS[self.kind].parameters
        if unknown := [key for key in self.params if key not in known]:
            raise UsageError(
                f"{self.name}: a {self.kind} has no {unknown[0]!r} (there are: {', '.join(sorted(known))})"
            )

    @property
    def role(self) -> str:
        """The name without its layer: `self_attn.q_proj`, `layer` for a layer's output, `lm_head`."""
        parts = self.name.split(".", 3)
        if parts[:2] != ["model", "layers"]:
            return self.name
        return parts[3] if len(parts) > 3 else "layer"

    @property
    def layer(self) -> int | None:
        parts = self.name.split(".", 3)
        return int(parts[2]) if parts[:2] == ["model", "layers"] else None


class Graph:
    """Nodes by name, each after its inputs."""

    def __init__(self, config: ModelConfig, nodes: Mapping[str, Node]) -> None:
        self.config = config
        self.nodes = nodes
        self.order = {name: index for index, name in enumerate(nodes)}
        self.by_role = {(node.layer, node.role): node for node in nodes.values()}

    @property
    def head(self) -> Node:
        """The linear layer whose result are the logits, before they are capped."""
        return self.nodes.get("lm_head_uncapped", self.nodes["lm_head"])

    def shape(self, node: Node) -> LayerShape:
        """The sizes of the layer of a node."""
        assert node.layer is not None, f"{node.name} is in no layer"
        return self.config.shape(node.layer)


def build_graph(config: ModelConfig) -> Graph:
    """The nodes of the model that karat.models makes of `config`."""
    from karat.models.decoder import Decoder

    ops = _GraphOps()
    decoder = Decoder(_name_of, config, Wholes())  # where sums are cut is no part of the graph
    caches = by_layer(decoder.keeps, dict(enumerate(range(config.num_layers))))
    decoder(ops, None, caches, {rotation: rotation for rotation in decoder.rotations})
    return Graph(config, ops.nodes)


def _name_of(spec: WeightSpec) -> str:
    return spec.source


class _GraphOps(Ops):
    """Ops whose results are names of nodes; weights are names of tensors, RoPE tables are Rotations, and caches
    are numbers of layers."""

    def __init__(self) -> None:
        self._cache: dict[int, tuple[str, str]] = {}
        self.nodes: dict[str, Node] = {}

    def apply(self, op: Op[Any]) -> Any:
        return _NODES[type(op)](self, op)

    def node(self, name: str, kind: str, *inputs: str, **params: Any) -> str:
        assert name not in self.nodes, f"two results are called {name}"
        self.nodes[name] = Node(name, kind, inputs, params)
        return name

    def of(self, op: Single, kind: str, **params: Any) -> str:
        """The node of an op that is one node."""
        return self.node(op.name, kind, *op.given(Tensor).values(), **params)

    def whole(self, op: Single) -> str:
        """The node of an op whose parameters are fields of the op."""
        kind = _OF_OPS[type(op)]
        return self.of(op, kind.name, **{key: getattr(op, key) for key in kind.parameters})

    def layers(self, op: Linears, **params: Any) -> tuple[str, ...]:
        return tuple(self.of(each, "linear", weight=each.weight, bias=each.bias, **params) for each in op.alone())

    def write(self, op: api.KvWrite) -> None:
        self._cache[op.cache] = (op.k, op.v)

    def attention(self, op: api.PagedAttention) -> str:
        k, v = self._cache[op.cache]
        prefix = op.name.rpartition(".")[0]
        scores = self.node(f"{prefix}.scores", "scores", op.q, k, scale=op.scale, window=op.window, cap=op.cap)
        weights = self.node(f"{prefix}.weights", "softmax", scores, sinks=op.sinks)
        return self.node(op.name, "mix", weights, v)

    def routed(self, op: api.Route) -> tuple[str, str]:
        ids, weights = op.names
        self.node(ids, "chosen_ids", op.logits, routing=op.routing)
        return ids, self.node(weights, "chosen_weights", op.logits, ids, routing=op.routing)

    def mixture(self, op: api.Experts) -> str:
        names = ("gate_biases", "up_biases", "down_biases")
        biases = dict(zip(names, op.biases or (None, None, None), strict=True))
        matrices = {"gates": op.gates, "ups": op.ups, "downs": op.downs}
        return self.of(op, "experts", **matrices, **biases, by_gelu=op.by_gelu, clamp=op.clamp)

    def parts(self, op: api.Split) -> tuple[str, ...]:
        return tuple(
            self.node(name, "part", op.x, shapes=op.shapes, groups=op.groups, number=number)
            for number, name in enumerate(op.names)
        )

    def norm_of_part(self, op: api.PartNorm) -> str:
        """A norm of the whole row: which rank adds which squares is no part of the graph."""
        return self.node(op.name, "norm", op.x, weight=op.weight, eps=op.eps, plus_one=False)

    def gathered(self, op: api.GatherColumns) -> str:
        raise AssertionError("a graph is of the whole model")


_NODES: Table[_GraphOps] = table_of(
    {
        **dict.fromkeys(_OF_OPS, _GraphOps.whole),
        api.Embedding: lambda graph, op: graph.of(op, "embedding", weight=op.table),
        api.Linear: lambda graph, op: graph.of(op, "linear", weight=op.weight, bias=op.bias),
        api.GatherColumns: _GraphOps.gathered,
        api.Qkv: lambda graph, op: graph.layers(op, head_dim=op.head_dim),
        api.GateUp: _GraphOps.layers,
        api.Rope: lambda graph, op: graph.of(
            op, "rope", rope=op.table.rope, dim=op.table.head_dim, growth=op.table.growth
        ),
        api.Linears: _GraphOps.layers,
        api.Split: _GraphOps.parts,
        api.KvWrite: _GraphOps.write,
        api.PagedAttention: _GraphOps.attention,
        api.Route: _GraphOps.routed,
        api.Experts: _GraphOps.mixture,
        api.SquareSums: lambda graph, op: op.name,
        api.PartNorm: _GraphOps.norm_of_part,
    }
)
