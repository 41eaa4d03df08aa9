"""A model as a list of nodes. An executor that computes nothing runs the model's definition once and notes every op."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.checkpoint.weights import Weight, WeightSpec
from karat.config import Activations, FloatName, ModelConfig, RopeConfig
from karat.errors import UsageError
from karat.layers.shards import CutUnits
from karat.ops.api import CacheSpec, HeadGroups, Held, Observer, Ops, Runner, Step, StepLimits, Tensor
from karat.ranks.group import Group, Share

Kind = Literal["embedding", "norm", "linear", "rope", "scores", "softmax", "mix", "silu_mul", "add", "select"]
Edits = Mapping[str, Mapping[str, Any]]  # node name to the parameters that are replaced


# The parameters of each kind of node. Weights stand in them by name.
PARAMETERS: Mapping[Kind, frozenset[str]] = {
    "embedding": frozenset({"weight"}),
    "norm": frozenset({"weight", "eps"}),
    "linear": frozenset({"weight", "bias", "head_dim"}),
    "rope": frozenset({"rope"}),
    "scores": frozenset({"scale", "window"}),
    "softmax": frozenset(),
    "mix": frozenset(),
    "silu_mul": frozenset(),
    "add": frozenset(),
    "select": frozenset(),
}


@dataclass(frozen=True, slots=True)
class Node:
    """One named result.

    params: what the right functions of karat.check.model.ops need; mistakes: what karat.check.mistakes changes in them.
    Raises UsageError for a parameter that the kind does not have.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    mistakes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = PARAMETERS[self.kind]
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


def build_graph(config: ModelConfig) -> Graph:
    """The nodes of the model that karat.models makes of `config`."""
    from karat.models.decoder import Decoder

    ops = _GraphOps(config)
    decoder = Decoder(_name_of, config, CutUnits(1, 1))  # where sums are cut is no part of the graph
    decoder(ops, None, None, decoder.rope_tables(ops, 0))
    return Graph(config, ops.nodes)


def _name_of(spec: WeightSpec) -> str:
    return spec.source


class _GraphOps:
    """Ops (karat.ops.api) whose results are names of nodes and whose weights are names of tensors."""

    executor = "graph"
    dtype: FloatName = "float64"
    default_kv_dtype: FloatName = "float64"
    activations: Activations = "float64"

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._cache: dict[int, tuple[str, str]] = {}
        self.nodes: dict[str, Node] = {}

    def _add(self, name: str, kind: Kind, *inputs: str, **params: Any) -> str:
        assert name not in self.nodes, f"two results are called {name}"
        self.nodes[name] = Node(name, kind, inputs, params)
        return name

    def load(self, weight: Weight, *, later: bool = False) -> str:
        return weight.name

    @property
    def pending_bytes(self) -> int:
        return 0

    def load_pending(self, *, spares_core: bool = False) -> None:
        """Nothing is loaded later."""

    def bytes_of(self, dtype: str, shape: tuple[int, ...]) -> int:
        return 0

    def held(self, loaded: str) -> Held:
        raise AssertionError("a graph holds no weights")

    def rope_table(self, rope: RopeConfig, *, head_dim: int, num_positions: int) -> RopeConfig:
        return rope

    def cache_bytes(self, spec: CacheSpec) -> int:
        return 0

    def new_cache(self, spec: CacheSpec) -> None:
        return None

    def begin(self, batch: ForwardBatch) -> None:
        return None

    def read(self, x: str) -> NDArray[np.floating]:
        raise AssertionError("a model reads no values")

    def embedding(self, step: None, table: str, *, share: Share | None = None, name: str) -> str:
        return self._add(name, "embedding", weight=table)

    def rms_norm(self, x: str, weight: str, eps: float, *, name: str) -> str:
        return self._add(name, "norm", x, weight=weight, eps=eps)

    def runner(self, forward: Callable[[Ops, Step], Tensor], limits: StepLimits) -> Runner:
        raise AssertionError("a graph is not run")

    def linear(
        self,
        x: str,
        weight: str,
        bias: str | None = None,
        *,
        leaves: tuple[int, ...] | None = None,
        group: Group | None = None,
        name: str,
    ) -> str:
        return self._add(name, "linear", x, weight=weight, bias=bias)

    def gather_columns(self, x: str, share: Share, *, name: str) -> str:
        raise AssertionError("a graph is of the whole model")

    def qkv(
        self,
        x: str,
        weights: tuple[str, str, str],
        biases: tuple[str, str, str] | None,
        *,
        head_dim: int,
        names: tuple[str, str, str],
    ) -> tuple[str, str, str]:
        q, k, v = (
            self._add(name, "linear", x, weight=weight, bias=bias, head_dim=head_dim)
            for name, weight, bias in zip(names, weights, biases or (None, None, None), strict=True)
        )
        return q, k, v

    def gate_up(
        self, x: str, weights: tuple[str, str], biases: tuple[str, str] | None, *, names: tuple[str, str]
    ) -> tuple[str, str]:
        gate, up = (
            self._add(name, "linear", x, weight=weight, bias=bias)
            for name, weight, bias in zip(names, weights, biases or (None, None), strict=True)
        )
        return gate, up

    def silu_mul(self, gate: str, up: str, *, name: str) -> str:
        return self._add(name, "silu_mul", gate, up)

    def add(self, x: str, y: str, *, name: str) -> str:
        return self._add(name, "add", x, y)

    def rope(self, x: str, table: RopeConfig, step: None, *, name: str) -> str:
        return self._add(name, "rope", x, rope=table)

    def kv_write(self, k: str, v: str, cache: None, layer: int, step: None) -> None:
        self._cache[layer] = (k, v)

    def paged_attention(
        self,
        q: str,
        cache: None,
        layer: int,
        step: None,
        *,
        scale: float,
        window: int | None,
        name: str,
        groups: HeadGroups | None = None,
        observe: Observer | None = None,
    ) -> str:
        k, v = self._cache[layer]
        prefix = name.rpartition(".")[0]
        scores = self._add(f"{prefix}.scores", "scores", q, k, scale=scale, window=window)
        weights = self._add(f"{prefix}.weights", "softmax", scores)
        return self._add(name, "mix", weights, v)

    def select_rows(self, x: str, step: None, *, name: str) -> str:
        return self._add(name, "select", x)
