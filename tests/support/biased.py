"""Models whose router chooses by sigmoid and a bias, which no family of Karat has yet: put into a graph."""

from dataclasses import replace

import numpy as np

from karat.check.model.graph import Graph
from karat.check.model.weights import CheckpointWeights
from tests.support.weights import weight_of

BIAS = "mlp.gate.e_score_correction_bias"


def biased(graph: Graph, weights: CheckpointWeights) -> tuple[Graph, CheckpointWeights]:
    """A model with experts, each of whose routers has such a bias."""
    nodes, stored = dict(graph.nodes), dict(weights.stored)
    for name in (name for name, node in graph.nodes.items() if node.kind in ("chosen_ids", "chosen_weights")):
        layer, _, _ = name.partition(".mlp.")
        bias, node = f"{layer}.{BIAS}", nodes[name]
        routing = replace(node.params["routing"], score="sigmoid", renormalised=True, bias=bias)
        nodes[name] = replace(node, params={**node.params, "routing": routing})
        rng = np.random.Generator(np.random.PCG64(23))
        values = rng.integers(-(2**20), 2**20, graph.config.num_experts) / 2**21  # type: ignore[attr-defined]
        stored[bias] = weight_of(values.astype(np.float32), "F32", bias)
    return Graph(graph.config, nodes), CheckpointWeights(stored)
