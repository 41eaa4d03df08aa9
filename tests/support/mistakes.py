"""What every mistake of the catalogue computes on small models, node by node.

`python -m tests.support.mistakes` prints what tests/data/mistake_checksums.json holds: numbers, and no digests of bits,
because a matrix product of float64 has other last digits on another processor.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.enumerate import Enumeration
from karat.check.mistakes.nodes import changed, evaluate
from karat.check.model.context import Context
from karat.check.model.graph import Graph, Node, build_graph
from karat.check.model.tokens import Tokens
from karat.check.model.weights import CheckpointWeights
from karat.check.trace.format import TraceInfo
from karat.models.decoder import weight_specs
from karat.models.registry import read_config
from karat.quant import FORMATS
from tests.support.biased import biased
from tests.support.gated import gate_weights, gated_graph
from tests.support.golden import FAMILIES
from tests.support.parallel import config_of
from tests.support.weights import weight_of

Array = NDArray[np.floating]
Values = Iterator[tuple[str, Array]]

F64, F32 = np.dtype(np.float64), np.dtype(np.float32)
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
NUM_PAIRS = 150  # of mistakes at one node, in a case
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
GATED = "llama, gated"
BIASED = "qwen3_moe, chosen by bias"
CASES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    **{family: (family, "F32", changes) for family, changes in FAMILIES.items()},
    "mistral, a narrow window": ("mistral", "F32", {"sliding_window": 5, "tie_word_embeddings": False}),
    "qwen3, yarn": ("qwen3", "F32", {"attention_bias": False, "rope_scaling": YARN}),
    "qwen2, float16": ("qwen2", "F16", {"use_sliding_window": False, "head_dim": 8}),
    GATED: ("llama", "F32", {**FAMILIES["llama"], "num_hidden_layers": 3}),
    BIASED: ("qwen3_moe", "F32", FAMILIES["qwen3_moe"]),
    "qwen2, bfloat16": ("qwen2", "BF16", {"use_sliding_window": False}),
}
# Parameters that only fits, or the zoo, set: name of a node to values.
FITTED: Mapping[str, list[dict[str, Any]]] = {
    "model.embed_tokens": [
        {"shift": 3, "from_id": 40},
        {"elements": ((5, 3, 0.25), (7, 1, -1.5))},
        {"output_factor": 1.7},
    ],
    "model.layers.0.input_layernorm": [{"elements": ((3, 0.5),)}, {"eps": 0.01, "eps_outside": True}],
    "model.layers.0.self_attn.q_proj": [
        {"elements": ((5, 3, 0.25), (5, 4, 0.5))},
        {"bias_elements": ((2, 0.75),)},
        {"factor": 0},
        {"soft_cap": 1.5},
    ],
    "model.layers.0.self_attn.q_rope": [
        {"positions": -40},
        {"positions": 9, "times": 2, "direction": -1},
        {"positions": ("clipped", 5)},
        {"positions": ("wrapped", 4)},
    ],
    "model.layers.0.self_attn.scores": [{"scale": 0.3}, {"window": 3}, {"diagonal": 2, "align": "top-left"}],
    "model.layers.0.self_attn.weights": [{"empty": "zero", "axis": -2}, {"empty": "uniform"}],
    "lm_head": [{"elements": ((5, 3, 0.25),)}, {"factor": 0.5, "output_factor": 2.0}, {"soft_cap": 3.0}],
}


def traces() -> dict[str, TraceInfo]:
    """One prompt with decode steps, and two sequences side by side."""
    rng = np.random.default_rng(11)
    chunks = [(0, range(6)), (1, range(4)), (0, range(6, 7)), (1, range(4, 7)), (0, range(7, 8)), (1, range(7, 8))]
    pairs = [(sequence, position) for sequence, positions in chunks for position in positions]
    return {
        "one": TraceInfo(
            token_ids=tuple(rng.integers(0, 64, 14).tolist()),
            positions=tuple(range(14)),
            sequences=(0,) * 14,
            steps=(0, 9, 12, 13),
        ),
        "two": TraceInfo(
            token_ids=tuple(rng.integers(0, 64, len(pairs)).tolist()),
            positions=tuple(position for _, position in pairs),
            sequences=tuple(sequence for sequence, _ in pairs),
            steps=(0, 10, 14),
        ),
    }


def values_of(case: str, *, num_pairs: int = 0, dtype: np.dtype[np.floating] = F64) -> Values:
    """(what, result) of every enumerated mistake at every node that it edits, on the right inputs of that node.

    With `num_pairs`, of as many pairs of mistakes at one node too.
    """
    yield from _values(*model_of(case), num_pairs, dtype, ("one", "two"))


def model_of(case: str) -> tuple[Graph, CheckpointWeights]:
    """The graph and the weights of a case."""
    family, stored, changes = CASES[case]
    config = read_config(config_of(family, **(SIZES | changes)))
    weights = weights_of(config, stored)
    if case == BIASED:
        return biased(build_graph(config), weights)
    if case != GATED:
        return build_graph(config), weights
    return gated_graph(config), CheckpointWeights({**weights.stored, **gate_weights(config, stored)})


def values_of_format(stored: str) -> Values:
    """The same of the misreadings of one block format."""
    sizes = SIZES | {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "head_dim": 64}
    config = read_config(config_of("qwen2", use_sliding_window=False, **sizes))
    return _values(build_graph(config), weights_of(config, stored), 0, F64, ("one",), bugs="quant-")


def _values(
    graph: Graph,
    weights: CheckpointWeights,
    num_pairs: int,
    dtype: np.dtype[np.floating],
    of_traces: Sequence[str],
    bugs: str = "",
) -> Values:
    """`bugs`: how the bugs begin whose values are wanted."""
    rng = random.Random(5)
    for trace in of_traces:
        info = traces()[trace]
        tokens = Tokens.of(info)
        context = Context(weights, tokens, np.arange(2, tokens.num_tokens), "float16" if trace == "two" else None)
        right: dict[str, Array] = {}

        def at(node: Node, right: dict[str, Array] = right, context: Context = context) -> Array:
            return evaluate(node, [right[source] for source in node.inputs], context, dtype)

        for name, node in graph.nodes.items():
            right[name] = at(node)
            if not bugs:
                yield f"{trace}|right||{name}", right[name]
        by_node: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
        enumeration = Enumeration(graph, weights, tokens)
        variants = [variant for index in range(graph.config.num_layers) for variant in enumeration.of_layer(index)]
        for variant in [*variants, *enumeration.of_ends()]:
            for name, params in variant.edits.items():
                by_node.setdefault(name, []).append((variant.bug, variant.detail, params))
        for name in filter(graph.nodes.__contains__, FITTED):
            node = graph.head.name if name == "lm_head" else name
            by_node.setdefault(node, []).extend(("fitted", str(params), params) for params in FITTED[name])
        for name, found in by_node.items():
            for bug, detail, params in found:
                if not bug.startswith(bugs):
                    continue
                yield f"{trace}|{bug}|{detail}|{name}", at(changed(graph.nodes[name], params))
        for _ in range(num_pairs):
            name = rng.choice(sorted(by_node))
            (bug, detail, first), (other, more, second) = rng.choice(by_node[name]), rng.choice(by_node[name])
            if first.keys().isdisjoint(second):
                node = changed(changed(graph.nodes[name], first), second)
                yield f"{trace}|pairs|{bug} {detail} + {other} {more}|{name}", at(node)


def of_linear(edit: Mapping[str, Any]) -> Array:
    """A product of four inputs, with these mistakes."""
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    weights = CheckpointWeights({"w": weight_of(values, "F32", "w")})
    context = Context(weights, Tokens.of(traces()["one"]), np.arange(14))
    node = changed(Node("y", "linear", ("x",), {"weight": "w"}), edit)
    return evaluate(node, [np.arange(12.0).reshape(3, 4)], context, F64)


def checksums(values: Values) -> dict[str, list[float]]:
    """Bug to [a weighted sum of all its finite values' sizes, how many are NaN, how many infinite]."""
    found: dict[str, list[float]] = {}
    for what, value in values:
        total = found.setdefault(what.split("|")[1], [0.0, 0, 0])
        flat = value.reshape(-1)
        sizes = np.minimum(np.abs(np.where(np.isfinite(flat), flat, 0)), 1e6)
        total[0] += float(np.cos(np.arange(len(flat))) @ (sizes * np.where(flat < 0, -1, 1)))
        total[1] += int(np.isnan(flat).sum())
        total[2] += int(np.isinf(flat).sum())
    return found


def all_checksums() -> dict[str, dict[str, list[float]]]:
    """Of every case, and of every block format with misreadings."""
    plain = {case: checksums(values_of(case, num_pairs=NUM_PAIRS)) for case in CASES}
    blocks = {stored: checksums(values_of_format(stored)) for stored in formats()}
    return plain | blocks


def formats() -> list[str]:
    """The block formats that Karat writes; those without a misreading have no values."""
    return sorted(name for name, format_ in FORMATS.items() if format_.pack is not None)


def weights_of(config: Any, stored: str) -> CheckpointWeights:
    """Every weight from integers of a fixed generator."""
    weights = {}
    for number, spec in enumerate(weight_specs(config)):
        rng = np.random.Generator(np.random.PCG64(number))
        values = rng.integers(-(2**20), 2**20, spec.shape).astype(np.float32) / 2**20
        is_vector = len(spec.shape) == 1
        values = values / 4 + ("norm" in spec.source) if is_vector else values / 2
        weights[spec.source] = weight_of(values, "F32" if is_vector and stored in FORMATS else stored, spec.source)
    return CheckpointWeights(weights)


if __name__ == "__main__":
    print(json.dumps(all_checksums(), indent=1))
