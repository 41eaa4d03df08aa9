"""A mistake in a part of a run: outside of the part a result is right, inside it is the mistake's.

The part stands beside a variant, and under PART in the edit of each of its nodes.
"""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.nodes import changed
from karat.check.mistakes.part import Part
from karat.check.model.context import Array
from karat.check.model.graph import Graph, Node
from karat.check.model.tokens import Tokens

PART = "part"  # the key of an edit
_HEADS = frozenset({"q_proj", "q_norm", "q_rope", "scores", "weights", "attention", "o_proj"})
_KV_HEADS = frozenset({"k_proj", "k_norm", "k_rope", "v_proj"})
_INNER = frozenset({"gate_proj", "up_proj", "act", "down_proj"})
_BY_INPUTS = ("self_attn.o_proj", "linear_attn.out_proj", "mlp.down_proj")


def units(graph: Graph, node: Node, width: int) -> int:
    """The heads or features of a node that tensor-parallel ranks share out; 0: each rank has all. width: of lm_head."""
    last = node.role.rpartition(".")[2]
    if is_head(node):
        return width
    if node.layer is None or last not in _HEADS | _KV_HEADS | _INNER:
        return 0
    shape = graph.shape(node)
    return shape.num_heads if last in _HEADS else shape.num_kv_heads if last in _KV_HEADS else shape.inner_size


def is_head(node: Node) -> bool:
    """Whether each rank has the logits of some token ids."""
    return node.name in ("lm_head", "lm_head_uncapped")


def is_by_inputs(node: Node) -> bool:
    """Whether a rank has a part of the inputs of a product, and the result is the sum over ranks."""
    return node.role in _BY_INPUTS


def share(size: int, rank: int, of: int) -> slice:
    """The part of `size` features that a rank has; where they do not divide, all ranks but the last have as many."""
    each = -(-size // of)
    return slice(min(rank * each, size), min((rank + 1) * each, size))


def axis_of_rank(node: Node, ndim: int) -> int:
    """The axis of a result that ranks share out."""
    return 0 if node.kind in ("scores", "softmax") else 1


def rows_mask(node: Node, part: Part, tokens: Tokens, domain: NDArray[np.int64], ndim: int) -> Any:
    """The rows of a node's result that belong to the part, broadcastable to it."""
    if part.rows is None:
        return np.ones((1,) * ndim, bool)
    rows = part.rows.of(tokens)[domain]
    return rows[:, None] if node.kind in ("scores", "softmax") else rows.reshape(-1, *(1,) * (ndim - 1))


def in_part(
    node: Node,
    edit: Mapping[str, Any],
    tokens: Tokens,
    domain: NDArray[np.int64],
    compute: Callable[[Node, Callable[[Array], Array]], Array],
) -> Array:
    """A node's result under an edit of a part.

    compute(node, through): a node's result, of inputs that went through a function.
    """
    part: Part = edit[PART]
    wrong = changed(node, {key: value for key, value in edit.items() if key != PART})
    right = compute(node, _same)
    if part.rank is not None and is_by_inputs(node):
        # The bias is added to the sum over ranks, and is no rank's.
        wrong = changed(
            node, {key: value for key, value in edit.items() if key not in (PART, "bias", "effective_bias")}
        )

        def inside(x: Array) -> Array:
            return _cut(x, part, outside=False)

        def outside(x: Array) -> Array:
            return _cut(x, part, outside=True)

        of_both: Array = compute(node, outside) + compute(wrong, inside) - compute(node, np.zeros_like)
        return np.where(rows_mask(node, part, tokens, domain, right.ndim), of_both, right)
    result = compute(wrong, _same)
    mask = rows_mask(node, part, tokens, domain, right.ndim)
    if part.rank is not None:
        axis = axis_of_rank(node, right.ndim)
        mine = np.zeros(right.shape[axis], bool)
        mine[share(right.shape[axis], *part.rank)] = True
        mask = mask & mine.reshape([-1 if a == axis else 1 for a in range(right.ndim)])
    return np.where(mask, result, right)


def _same(x: Array) -> Array:
    return x


def _cut(x: Array, part: Part, *, outside: bool) -> Array:
    """The inputs [tokens, features] of one rank, or those of all others; zeros elsewhere."""
    assert part.rank is not None
    flat = x.reshape(len(x), -1)
    mine = np.zeros(flat.shape[1], bool)
    mine[share(flat.shape[1], *part.rank)] = True
    return np.where(mine ^ outside, flat, 0).reshape(x.shape)


def within(variant: Variant, part: Part, graph: Graph) -> Variant | None:
    """The variant in a part; None if one of its nodes is not shared out over ranks."""
    if part.rank is not None:
        for name in variant.edits:
            heads = units(graph, graph.nodes[name], graph.config.vocab_size)
            if not heads or (heads % part.rank[1] and not is_head(graph.nodes[name])):
                return None
    edits = {name: {**params, PART: part} for name, params in variant.edits.items()}
    return replace(variant, edits=edits, part=part)
