"""Recorded arrays in the shapes that the graph of the model has them in."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.check.graph import Node
from karat.check.tokens import Tokens
from karat.check.trace import MASKED, Trace
from karat.errors import TraceError

Array = NDArray[np.floating]


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A recorded array in the shape of its node, and which of its rows (and heads) the trace really has."""

    values: Array
    present: NDArray[np.bool_] | None  # broadcastable to values; None: all


def align(
    trace: Trace, node: Node, tokens: Tokens, *, num_heads: int, domain: NDArray[np.int64], features: tuple[int, ...]
) -> Recorded:
    """What a trace has of a node. `domain` are the tokens that the node has rows for, `features` is a row's shape.

    TraceError for another shape.
    """
    name, info, array = node.name, trace.info, trace.arrays[node.name]
    with np.errstate(invalid="ignore"):
        values = np.asarray(array, np.float64)
    rows = trace.rows_of(name)
    while values.ndim > 1 and values.shape[0] == 1 and values.ndim > _expected_ndim(node):
        values = values[0]  # a batch of one
    axis = 1 if node.kind in ("scores", "softmax") else 0
    heads = info.heads.get(name)
    if values.ndim <= axis or values.shape[axis] != len(rows):
        raise TraceError(f"{name}: shape {array.shape}; expected {len(rows)} tokens on axis {axis}")
    if node.kind in ("scores", "softmax"):
        if values.ndim != 3 or len(values) != (num_heads if heads is None else len(heads)):
            raise TraceError(f"{name}: shape {array.shape}; expected [{num_heads} heads, tokens, keys]")
        empty = -np.inf if node.kind == "scores" else 0.0
        values = values[:, :, : tokens.context]
        full = np.full((num_heads, tokens.num_tokens, tokens.context), empty)
        chosen = np.array(range(num_heads) if heads is None else heads, np.int64)
        index = np.ix_(chosen, rows, np.arange(values.shape[2]))
        if node.kind == "scores":
            values = np.where(values <= MASKED, -np.inf, values)
        full[index] = values
        if heads is None and len(rows) == tokens.num_tokens:
            return Recorded(full, None)
        present = np.zeros((num_heads, tokens.num_tokens, 1), bool)
        present[np.ix_(chosen, rows)] = True
        return Recorded(full, present)
    try:
        values = values.reshape(len(rows), *features)
    except ValueError:
        raise TraceError(f"{name}: shape {array.shape}; expected [tokens, {', '.join(map(str, features))}]") from None
    if np.array_equal(rows, domain):
        return Recorded(values, None)
    full = np.zeros((len(domain), *features))
    found = np.isin(rows, domain)
    full[np.searchsorted(domain, rows[found])] = values[found]
    present = np.isin(domain, rows).reshape(-1, *(1,) * len(features))
    return Recorded(full, present)


def _expected_ndim(node: Node) -> int:
    return 3 if node.kind in ("scores", "softmax", "rope") else 2
