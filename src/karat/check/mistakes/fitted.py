"""Mistakes with a free number, fitted to the recorded inputs and output of one op.

A fit is a proposal. As every mistake it counts only if the op, computed again with it, gives the recorded output.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes import fitted_rope
from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.embedding import NO_ROW
from karat.check.mistakes.fitted_ranks import kv_heads, order
from karat.check.mistakes.nodes import changed, evaluate, replaced
from karat.check.model.context import Context
from karat.check.model.graph import Node
from karat.check.model.right.attention import Visible, visible
from karat.check.model.right.norm import spanned

Array = NDArray[np.floating]
F64 = np.dtype(np.float64)
_FEW_IDS = 16  # whose rows of the embedding are compared with all of it
_MANY_ROWS = 1 << 13


def fits(
    node: Node,
    inputs: Sequence[Array],
    got: Array,
    context: Context,
    rows: NDArray[np.bool_] | None = None,
) -> Iterator[Variant]:
    """Mistakes of `node` fitted to its recorded output `got`, beside the mistakes that the node has.

    rows [tokens]: the tokens that the numbers are fitted to, where the op is one of tokens by themselves; None: all.
    """
    with np.errstate(all="ignore"):
        found: Iterator[tuple[str, str, dict[str, Any]]]
        match node.kind:
            case "scores":
                found = _scores(node, inputs, got, context)
            case "rope":
                found = fitted_rope.fits(node, inputs, got, context, rows)
            case "norm":
                right = evaluate(node, inputs, context, F64)
                found = chain(_of_norm(node, inputs, got, right, context), _norm(node, inputs, got, context))
            case "embedding":
                found = _embedding(node, got, context)
            case "linear":
                found = _linear(node, inputs, got, context)
            case "scale":
                found = _scale(node, inputs, got)
            case "mix":
                found = kv_heads(node, len(inputs[0]), inputs[1].shape[1], inputs, got, context)
            case _:
                return
        for bug, detail, params in found:
            yield Variant(bug, detail, {node.name: params}, fitted=True)


def _ratio(got: Array, expected: Array) -> float | None:
    """The factor by which `expected` is closest to `got`."""
    both = np.isfinite(got) & np.isfinite(expected)
    x, y = expected[both], got[both]
    square = float(x @ x)
    return float(x @ y) / square if square > 0 else None


def _scores(
    node: Node, inputs: Sequence[Array], got: Array, context: Context
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    factor = _ratio(got, evaluate(node, inputs, context, F64))
    if factor is not None and abs(factor - 1) > 1e-6:
        scale = factor * node.params["scale"]
        yield "scale-wrong", f"multiplied by {scale:.6g} instead of {node.params['scale']:.6g}", {"scale": scale}
    yield from kv_heads(node, len(got), inputs[1].shape[1], inputs, got, context)
    # The window that the pattern of masked scores shows.
    tokens = context.tokens
    without_window = Visible(tokens.positions, tokens.positions, None, tokens)
    seen = np.isfinite(got).any(axis=0) & replaced(node)(visible)(without_window)
    count = seen.sum(axis=-1)
    last = int(count.max())
    if last and node.params["window"] != last and last < tokens.context:
        yield "mask-window", f"a window of {last}", {"window": last}


def _norm(
    node: Node, inputs: Sequence[Array], got: Array, context: Context
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    weight = context.weights.array(node.params["weight"], F64) + node.mistakes.get("offset", 0)
    x, got = spanned(inputs[0], weight), spanned(got, weight)
    scaled = x * weight
    square = (scaled * scaled).sum(axis=-1)
    factor = (scaled * got).sum(axis=-1) / square  # 1 / root of each row
    mean_square = np.mean(x * x, axis=-1)
    inside = float(np.median(factor**-2 - mean_square))
    outside = float(np.median(1 / factor - np.sqrt(mean_square)))
    for name, eps, params in (("norm-eps", inside, {}), ("norm-eps-outside", outside, {"eps_outside": True})):
        if np.isfinite(eps) and eps > 0:
            for digits in (1, 2, 4):
                rounded = float(f"{eps:.{digits}g}")
                yield name, f"eps {rounded:g} instead of {node.params['eps']:g}", {"eps": rounded, **params}


def _of_norm(
    node: Node, inputs: Sequence[Array], got: Array, expected: Array, context: Context
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """One element of the weight: a single feature is off in every row, by the same part."""
    error = (got - expected).reshape(-1, *context.weights.shape(node.params["weight"]))
    column = _only_column(error)
    if column is None:
        return
    plain = evaluate(changed(node, {"no_weight": True}), inputs, context, F64).reshape(error.shape)[:, column]
    change = _ratio(error[:, column], plain)
    if change:
        yield "weight-element", f"element [{column}] differs by {change:.4g}", {"elements": ((column, change),)}


def _only_column(error: Array) -> int | None:
    """The one column in which there is an error to speak of; None if there are several."""
    if not np.isfinite(error).all() or error.shape[1] < 2:
        return None
    size = np.abs(error).max(axis=0)
    column = int(np.argmax(size))
    return None if (np.delete(size, column) > 0.01 * size[column]).any() else column


def _embedding(node: Node, got: Array, context: Context) -> Iterator[tuple[str, str, dict[str, Any]]]:
    expected = evaluate(node, [], context, F64)
    factor = _ratio(got, expected)
    error = got - expected
    wrong = np.unique(context.tokens.ids[np.abs(error).max(axis=1) > 0])
    row_column = _only_column(error)
    if len(wrong) and row_column is not None:
        sizes = {int(i): float(error[np.flatnonzero(context.tokens.ids == i)[0], row_column]) for i in wrong}
        row = max(sizes, key=lambda i: abs(sizes[i]))
        yield (
            "weight-element",
            f"element [{row}, {row_column}] differs by {sizes[row]:.4g}",
            {"elements": ((row, row_column, sizes[row]),)},
        )
    if factor is not None and abs(factor - 1) > 1e-6:
        yield "embed-scale", f"multiplied by {factor:.6g}", {"output_factor": factor}
    yield from _rows(node, got, expected, wrong, context)
    ids = context.tokens.ids
    name = node.params["weight"]
    vocab = context.weights.shape(name)[0]
    shifts: dict[int, list[int]] = {}
    for token in np.unique(ids)[:64]:
        row = got[np.flatnonzero(ids == token)[0]]
        start = max(0, int(token) - 512)
        table = context.weights.rows(name, F64, start, min(vocab, int(token) + 513))
        # The row of the same direction: a factor is another mistake.
        likeness = table @ row / np.maximum(np.linalg.norm(table, axis=1), 1e-30)
        nearest = int(np.argmax(likeness))
        shifts.setdefault(start + nearest - int(token), []).append(int(token))
    for shift, tokens in shifts.items():
        if shift:
            yield "embed-row", f"row id {shift:+d} is read for id", {"shift": shift}
            yield (
                "embed-row",
                f"row id {shift:+d} is read for ids from {min(tokens)} on",
                {"shift": shift, "from_id": min(tokens)},
            )


def _rows(
    node: Node, got: Array, expected: Array, wrong: NDArray[np.int64], context: Context
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Some ids, not all, whose rows are zeros or those of other ids: as at the edge of a shard of the vocabulary."""
    ids, name = context.tokens.ids, node.params["weight"]
    if not 0 < len(wrong) <= _FEW_IDS or len(wrong) == len(np.unique(ids)):
        return
    vocab = context.weights.shape(name)[0]
    found: dict[int, int] = {}
    for token in wrong.tolist():
        row = got[np.flatnonzero(ids == token)[0]]
        if not row.any():
            found[token] = NO_ROW
            continue
        for start in range(0, vocab, _MANY_ROWS):
            table = context.weights.rows(name, F64, start, min(vocab, start + _MANY_ROWS))
            apart = np.abs(table - row).max(axis=1)
            nearest = int(np.argmin(apart))
            if apart[nearest] <= 0.02 * np.abs(row).max():
                found[token] = start + nearest
    if len(found) == len(wrong):
        parts = [f"id {i} reads {'zeros' if other == NO_ROW else f'row {other}'}" for i, other in found.items()]
        edges = {i: n for n in (8, 4, 2) for i in found if vocab % n == 0 and (i % (vocab // n) in (0, vocab // n - 1))}
        at = f"; the edge of a rank of {min(edges.values())}" if len(edges) == len(found) else ""
        more = f", … {len(parts) - 4} more" if len(parts) > 4 else ""
        yield "embed-row", f"{', '.join(parts[:4])}{more}{at}", {"rows": tuple(found.items())}


def _element(node: Node, x: Array, got: Array, expected: Array) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """One element of the weight: a single feature is off, in proportion to a single input; or of the bias."""
    error = (got - expected).reshape(len(got), -1)
    x = x.reshape(len(x), -1)
    row = _only_column(error)
    if row is None or len(x) < 3:
        return
    if node.params.get("bias"):
        change = float(np.median(error[:, row]))
        yield (
            "weight-element",
            f"element [{row}] of the bias differs by {change:.4g}",
            {"bias_elements": ((row, change),)},
        )
    squares = (x * x).sum(axis=0)
    changes = np.divide(x.T @ error[:, row], squares, out=np.zeros_like(squares), where=squares > 0)
    left = np.abs(error[:, row, None] - x * changes).max(axis=0)
    column = int(np.argmin(left))
    yield (
        "weight-element",
        f"element [{row}, {column}] differs by {changes[column]:.4g}",
        {"elements": ((row, column, float(changes[column])),)},
    )


def _linear(
    node: Node, inputs: Sequence[Array], got: Array, context: Context
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    x = context.read(inputs[0].reshape(len(inputs[0]), -1), node.params["weight"])
    right = evaluate(node, inputs, context, F64)
    yield from _element(node, x, got, right)
    yield from order(node, x, got.reshape(len(got), -1), right.reshape(len(got), -1), context)
    if node.layer is not None:  # not the head
        return
    if (cap := node.mistakes.get("soft_cap")) is not None:  # which comes last
        with np.errstate(all="ignore"):
            got, node = cap * np.arctanh(got / cap), changed(node, {"soft_cap": None})
    factor = _ratio(got, evaluate(node, inputs, context, F64))
    if factor is not None and abs(factor - 1) > 1e-6 and factor > 0:
        yield "logit-scale", f"logits multiplied by {factor:.6g}", {"output_factor": factor}


def _scale(node: Node, inputs: Sequence[Array], got: Array) -> Iterator[tuple[str, str, dict[str, Any]]]:
    factor, right = _ratio(got, inputs[0]), node.params["factor"]
    if factor is not None and abs(factor - right) > 1e-6 * abs(right):
        yield "multiplier", f"{factor:.6g} instead of {right:.6g}", {"factor": factor}
