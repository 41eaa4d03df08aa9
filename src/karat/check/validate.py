"""What a trace lacks: names that are not those of the model, shapes, and what the diagnosis can do with the rest."""

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from karat.check.graph import Graph
from karat.check.replay import Replay
from karat.check.trace import Trace
from karat.check.weights import CheckpointWeights

# Beside the graph's nodes.
KNOWN_EXTRAS = ("model.rotary_emb.inv_freq", "model.rotary_emb.cos", "model.rotary_emb.sin")


@dataclass(frozen=True, slots=True)
class Validation:
    """misnamed: arrays that no node has, each with the name that may be meant. missing: roles without an array.

    reach says in words how exactly a bug could be located.
    """

    num_arrays: int
    misnamed: Sequence[tuple[str, str | None]]
    missing: Sequence[str]
    reach: str


def validate(graph: Graph, weights: CheckpointWeights, trace: Trace) -> Validation:
    """Check names, shapes and description. Raises TraceError for what cannot be used at all."""
    Replay(graph, weights, trace)
    known = [*graph.nodes, *KNOWN_EXTRAS]
    misnamed = []
    for name in trace.arrays:
        if name not in known:
            near = difflib.get_close_matches(name, [k for k in known if k not in trace.arrays], 1, 0.6)
            misnamed.append((name, near[0] if near else None))
    missing = [
        name for name, node in graph.nodes.items()
        if name not in trace.arrays and node.kind != "select"
    ]  # fmt: skip
    return Validation(len(trace.arrays), misnamed, missing, reach(graph, missing))


def reach(graph: Graph, missing: Collection[str]) -> str:
    """How exactly a bug can be located in a trace that lacks these results."""
    missing = {name for name in missing if graph.nodes[name].kind != "select"}
    if not missing:
        return "complete: a bug is located to the op"
    if not any(f"model.layers.{layer}" in missing for layer in range(graph.config.num_layers)):
        return "layer outputs: a bug is located to the layer, to the op where ops are there"
    if "lm_head" not in missing:
        return "logits: a bug is named only if one mistake, in one layer or in all, gives these logits"
    return "no logits: only what is recorded can be judged"
