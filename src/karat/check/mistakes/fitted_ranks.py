"""What ranks read in place of their own part, fitted to the recorded inputs and output of one op."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.linear import in_order, order_text
from karat.check.mistakes.nodes import changed, evaluate
from karat.check.mistakes.parts import is_by_inputs
from karat.check.mistakes.scope import DEGREES
from karat.check.model.context import Context
from karat.check.model.graph import Node
from karat.check.model.right.attention import kv_head_of

Array = NDArray[np.floating]
F64 = np.dtype(np.float64)


def kv_heads(
    node: Node, num_heads: int, num_kv_heads: int, inputs: Sequence[Array], got: Array, context: Context
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The KV head that gives each query head's numbers."""
    if num_kv_heads == 1 or "gqa" in node.mistakes:
        return
    left = []
    for kv_head in range(num_kv_heads):
        made = evaluate(changed(node, {"gqa": (kv_head,) * num_heads}), inputs, context, F64)
        error = np.where(np.isfinite(made) & np.isfinite(got), np.abs(got - made), 0)
        by_head = (
            error.reshape(len(got), num_heads, -1).max(axis=(0, 2)) if node.kind == "mix" else error.max(axis=(1, 2))
        )
        left.append(by_head)
    found = tuple(np.argmin(left, axis=0).tolist())
    if found != tuple(kv_head_of(num_heads, num_kv_heads).tolist()):
        yield "gqa-tile", f"query heads read KV heads {', '.join(map(str, found))}", {"gqa": found}


def order(
    node: Node, x: Array, got: Array, right: Array, context: Context
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Whose part of the weight each rank has, if it is not its own."""
    weight, bias, axis = node.params["weight"], node.params.get("bias"), int(is_by_inputs(node))
    shape = context.weights.shape(weight)
    for n in DEGREES:
        if shape[axis] // (node.params.get("head_dim") or 1) % n or node.mistakes:
            continue
        found = (
            _of_inputs(x, got - right, context.weights.array(weight, F64), n) if axis else _of_columns(got, right, n)
        )
        if found != tuple(range(n)):
            yield "shard-order", order_text(found), in_order(weight, None if axis else bias, axis, found)


def _of_columns(got: Array, right: Array, n: int) -> tuple[int, ...]:
    """The part of the right columns that is closest to each part of the recorded ones."""
    parts = np.split(right, n, axis=1)
    return tuple(int(np.argmin([np.abs(mine - other).max() for other in parts])) for mine in np.split(got, n, axis=1))


def _of_inputs(x: Array, error: Array, weight: Array, n: int) -> tuple[int, ...]:
    """The order of parts of a weight that leaves least of an error: ranks with each other's, or one's of another."""
    pieces, parts = np.split(x, n, axis=1), np.split(weight, n, axis=1)
    sums = [[piece @ part.T for part in parts] for piece in pieces]
    own = tuple(range(n))
    orders = [(*own[:a], b, *own[a + 1 :]) for a in own for b in own if a != b]
    orders += [tuple(b if r == a else a if r == b else r for r in own) for a in own for b in own[a + 1 :]]
    orders += [own[k:] + own[:k] for k in range(1, n)]

    def left(order: tuple[int, ...]) -> float:
        change = sum(sums[r][s] - sums[r][r] for r, s in enumerate(order) if r != s)
        return float(np.abs(error - change).max())

    return min(orders, key=left)
