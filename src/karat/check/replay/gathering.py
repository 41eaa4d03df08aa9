"""Traces of tensor-parallel engines: the arrays of ranks, `name@r`, are joined to whole ones.

Heads, channels and inner features are split over ranks (karat.check.replay.rank_columns has those in several pieces).
Hidden states, norms and logits are whole on each rank, and must be equal. Several ranks hold a KV head if query heads
of theirs read it. `….partial` (a rank's part of a sum) and `lm_head.part` (a rank's columns of the logits) are no
results of the whole model, and are left out.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod

import numpy as np

from karat.check.model.graph import Graph, Node
from karat.check.replay import rank_columns
from karat.check.trace.format import Array, LazyArrays, Trace
from karat.config import LayerShape
from karat.errors import TraceError

SPLIT = frozenset(
    "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.q_norm self_attn.k_norm self_attn.v_norm "
    "self_attn.q_rope self_attn.k_rope self_attn.scores self_attn.weights self_attn.attention mlp.gate_proj "
    "mlp.up_proj mlp.act self_attn.q self_attn.gate self_attn.gated linear_attn.in_proj_z linear_attn.in_proj_b "
    "linear_attn.in_proj_a linear_attn.v linear_attn.decay linear_attn.beta linear_attn.delta "
    "linear_attn.delta_normed linear_attn.norm conv.before conv.after conv.x conv.gated_x conv.conv conv.gated "
    "mlp.shared_expert.gate_proj mlp.shared_expert.up_proj mlp.shared_expert.act".split()
)

NORMS_OF_STATES = ".state_norm"  # by value head; no result of the graph, as nothing is computed from them

_OF_HEADS = ("self_attn.q_proj", "self_attn.q_norm", "self_attn.q_rope", "self_attn.attention")
_OF_KV_HEADS = ("self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm", "self_attn.v_norm", "self_attn.k_rope")


def gathered(graph: Graph, trace: Trace, rank: int = 0) -> tuple[Trace, list[str]]:
    """The trace of the whole model, and the names of results that should be equal on all ranks and are not.

    Where ranks differ, the result of `rank` is taken. A trace of one rank is returned as it is. Raises TraceError if an
    array lacks a rank, or shapes do not add up.
    """
    ranks = trace.info.ranks
    if ranks == 1:
        return trace, []
    shapes: dict[str, tuple[int, ...]] = {}
    parts: dict[str, set[int]] = defaultdict(set)
    for name in trace.arrays:
        base, at, number = name.rpartition("@")
        if at and number.isdigit():
            if not is_part(base):
                parts[base].add(int(number))
        else:
            shapes[name] = trace.shape_of(name)
    for name, found in parts.items():
        if sorted(found) != list(range(ranks)):
            raise TraceError(f"{name}: there are ranks {sorted(found)}, expected 0 to {ranks - 1}; write them all")
    by_rank = {name: [trace.shape_of(f"{name}@{r}") for r in range(ranks)] for name in parts}
    held = _held_kv_heads(graph, by_rank)
    pieces = {
        name: rank_columns.pieces_of(graph, graph.nodes[name], by_rank)
        for name in parts
        if name in graph.nodes and graph.nodes[name].role in rank_columns.IN_PIECES
    }

    def joined(name: str) -> Array:
        if name not in parts:
            return trace.arrays[name]
        node = graph.nodes.get(name)
        if node is not None and name in pieces:
            size = max(stop for own in pieces[name] for _, stop in own)
            last = sorted(range(ranks), key=lambda number: number == rank)
            arrays = {number: trace.arrays[f"{name}@{number}"] for number in last}
            return rank_columns.joined(node, arrays, pieces[name], size)
        if name.endswith(NORMS_OF_STATES):
            return np.concatenate([trace.arrays[f"{name}@{number}"] for number in range(ranks)], axis=1)
        if node is None or node.role not in SPLIT:
            return trace.arrays[f"{name}@{rank}"]
        shape = graph.shape(node)
        by_rank = {number: trace.arrays[f"{name}@{number}"] for number in range(ranks)}
        return _joined(shape, node, by_rank, held.get(shape), rank)

    differing = []
    for name in parts:
        whole = joined(name)
        shapes[name] = whole.shape
        node = graph.nodes.get(name)
        others = (trace.arrays[f"{name}@{number}"] for number in range(ranks))
        if name in pieces:
            same = rank_columns.copies_agree(whole, dict(enumerate(others)), pieces[name])
        elif node is not None and node.role in SPLIT:
            shape = graph.shape(node)
            same = node.role not in _OF_KV_HEADS or _copies_agree(
                shape, whole, dict(enumerate(others)), held.get(shape)
            )
        else:
            same = all(np.array_equal(array, whole, equal_nan=True) for array in others)
        if node is not None and not same:
            differing.append(name)
    return Trace(trace.info, LazyArrays(shapes, joined), trace.path, shapes), differing


def is_part(name: str) -> bool:
    """Whether an array is a rank's part of a result that the trace also has whole."""
    return name.endswith((".partial", ".part"))


def merged(traces: Sequence[Trace]) -> Trace:
    """One trace from the traces of ranks 0, 1, … of the same steps."""
    arrays = {f"{name}@{rank}": array for rank, trace in enumerate(traces) for name, array in trace.arrays.items()}
    return Trace(replace(traces[0].info, ranks=len(traces)), arrays)


def _held_kv_heads(graph: Graph, arrays: Mapping[str, Sequence[tuple[int, ...]]]) -> dict[LayerShape, list[range]]:
    """The KV heads of each rank: those that its query heads read. Query heads are split in the order of ranks.

    arrays: shapes on ranks 0, 1, …. Without layers of which no result tells how many query heads a rank has.
    """
    held: dict[LayerShape, list[range]] = {}
    for name, of_ranks in arrays.items():
        if (node := graph.nodes.get(name)) is None or node.role not in _OF_HEADS or graph.shape(node) in held:
            continue
        shape = graph.shape(node)
        per_kv = shape.num_heads // shape.num_kv_heads
        counts = [prod(array[1:]) // shape.head_dim for array in of_ranks]
        ends = list(accumulate(counts))
        if ends[-1] == shape.num_heads:
            ranges = zip(ends, counts, strict=True)
            held[shape] = [range((end - num) // per_kv, -(-end // per_kv)) for end, num in ranges]
    return held


def _copies_agree(shape: LayerShape, whole: Array, by_rank: Mapping[int, Array], held: Sequence[range] | None) -> bool:
    """Whether ranks that hold the same KV head have the same values of it."""
    heads = whole.reshape(len(whole), -1, shape.head_dim)
    parts = [np.asarray(by_rank[rank]).reshape(len(whole), -1, shape.head_dim) for rank in sorted(by_rank)]
    if held is None or [part.shape[1] for part in parts] != [len(own) for own in held]:
        return True  # another way of sharing heads out, whose copies are not known
    return all(
        np.array_equal(heads[:, own.start : own.stop], part, equal_nan=True)
        for part, own in zip(parts, held, strict=True)
    )


def _joined(
    shape: LayerShape, node: Node, by_rank: Mapping[int, Array], held: Sequence[range] | None, first: int
) -> Array:
    """The parts side by side; a KV head that several ranks hold is taken once, of rank `first` if it holds it."""
    axis = 0 if node.kind in ("scores", "softmax") else 1
    parts = [np.asarray(by_rank[rank]) for rank in sorted(by_rank)]
    if node.role in _OF_KV_HEADS:
        parts = [part.reshape(len(part), -1, shape.head_dim) for part in parts]
        if held and [part.shape[1] for part in parts] == [len(heads) for heads in held]:
            whole = np.zeros((len(parts[0]), shape.num_kv_heads, shape.head_dim), parts[0].dtype)
            for number in sorted(range(len(parts)), key=lambda number: number == first):
                whole[:, held[number].start : held[number].stop] = parts[number]
            return whole if by_rank[0].ndim == 3 else whole.reshape(len(whole), -1)
        copies = sum(part.shape[1] for part in parts) / shape.num_kv_heads
        if copies > 1 and copies == int(copies):
            parts = parts[:: int(copies)]
    try:
        return np.concatenate(parts, axis=axis)
    except ValueError:
        found = ", ".join(str(part.shape) for part in parts)
        raise TraceError(f"{node.name}: the parts {found} of the ranks do not fit side by side") from None
