"""Mistakes with a free number, fitted to the recorded inputs and output of one op.

A fit is a proposal. As every mistake it counts only if the op, computed again with it, gives the recorded output.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.embedding import NO_ROW
from karat.check.mistakes.fitted_ranks import kv_heads, order
from karat.check.mistakes.nodes import changed, evaluate, replaced
from karat.check.mistakes.rope import position_map
from karat.check.model import ops
from karat.check.model.context import Context
from karat.check.model.graph import Node
from karat.config import RopeConfig
from karat.ops.rope_table import inverse_frequencies

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
                found = _rope(node, inputs, got, context, rows)
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
    without_window = ops.Visible(tokens.positions, tokens.positions, None, tokens)
    seen = np.isfinite(got).any(axis=0) & replaced(node)(ops.visible)(without_window)
    count = seen.sum(axis=-1)
    last = int(count.max())
    if last and node.params["window"] != last and last < tokens.context:
        yield "mask-window", f"a window of {last}", {"window": last}


def _rope(
    node: Node, inputs: Sequence[Array], got: Array, context: Context, rows: NDArray[np.bool_] | None
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    if node.mistakes.get("skip"):
        return
    chosen = np.ones(len(got), bool) if rows is None else rows
    angles = _angles(node, inputs[0], got)[chosen]  # [tokens, head_dim / 2], modulo 2π
    turned = node.mistakes.get("times", 1) * node.mistakes.get("direction", 1)  # so often by an angle
    rope, positions = node.params["rope"], position_map(node.mistakes.get("positions", 0), context.tokens)[chosen]
    half = angles.shape[1]
    frequencies = turned * context.frequencies(rope, 2 * half).astype(np.float64)
    shift = _shift(angles - positions[:, None] * frequencies, frequencies)
    if 0 < abs(shift) < 1 << 20:
        already = node.mistakes.get("positions", 0)
        if isinstance(already, int):
            total = shift + already
            yield "rope-position", f"positions shifted by {total:+d}", {"positions": total}
    # The base: from the turn between two tokens that follow each other.
    steps = np.flatnonzero(np.diff(positions) == 1)
    if len(steps) and half > 1:
        turn = np.median(np.angle(np.exp(1j * (angles[steps + 1] - angles[steps]))), axis=0) / turned  # [half]
        good = turn > 0
        good[0] = False  # the first pair turns by 1 whatever the base
        if good.any():
            exponent = np.arange(half) / half
            theta = float(np.exp(np.median(-np.log(turn[good]) / exponent[good])))
            theta = _refined(theta, angles, turned * positions, half)
            yield from _rounded_theta(RopeConfig(theta=2.0), theta, rope)
        if rope.rope_type != "default":
            yield from _rounded_theta(rope, _searched(rope, turn, context), rope)
        if rope.rope_type in ("linear", "llama3", "yarn"):
            yield from _other_factor(rope, turn, inputs[0], got)


def _shift(left: NDArray[np.float64], frequencies: NDArray[np.float64]) -> int:
    """By how many positions all tokens are turned too far, from the angles left [tokens, pairs], modulo 2π.

    The slowest pair says roughly how many, without going round; each faster one says it more exactly.
    """
    shift = 0.0
    for pair in np.argsort(np.abs(frequencies)):
        if frequencies[pair] != 0:
            rest = np.angle(np.exp(1j * (left[:, pair] - shift * frequencies[pair])))
            shift += float(np.median(rest) / frequencies[pair])
    return int(np.rint(shift)) if np.isfinite(shift) else 0


def _rounded_theta(kind: RopeConfig, theta: float, right: RopeConfig) -> Iterator[tuple[str, str, dict[str, Any]]]:
    ignored = "" if kind.rope_type == right.rope_type else f", {right.rope_type} scaling ignored"
    for digits in (2, 3, 5, 9):
        near = float(f"{theta:.{digits}g}")
        if near > 1 and (near != right.theta or ignored):
            yield (
                "rope-theta",
                f"theta {near:g} instead of {right.theta:g}{ignored}",
                {"rope": replace(kind, theta=near)},
            )


def _searched(rope: RopeConfig, turn: NDArray[np.float64], context: Context) -> float:
    """The base under which the scaled frequencies come closest to the turns."""

    def distance(log_theta: float) -> float:
        frequencies = inverse_frequencies(replace(rope, theta=float(np.exp(log_theta))), 2 * len(turn))
        return float(np.abs(np.log(np.maximum(turn, 1e-12) / frequencies)).sum())

    grid = np.linspace(np.log(50), np.log(2e7), 48)
    best = float(min(grid, key=distance))
    width = float(grid[1] - grid[0])
    for _ in range(24):
        best = min((best - width, best, best + width), key=distance)
        width *= 0.6
    return float(np.exp(best))


def _other_factor(
    rope: RopeConfig, turn: NDArray[np.float64], x: Array, got: Array
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The factor of a scaling under which the frequencies come closest to the turns, beside the length of q or k."""

    def distance(log_factor: float) -> float:
        frequencies = inverse_frequencies(replace(rope, factor=float(np.exp(log_factor))), 2 * len(turn))
        return float(np.abs(np.log(np.maximum(turn, 1e-12) / frequencies)).sum())

    grid = np.linspace(0, np.log(128), 29)
    best, width = float(min(grid, key=distance)), float(grid[1])
    for _ in range(30):
        best = min((best - width, best, best + width), key=distance)
        width *= 0.6
    length = float(np.linalg.norm(got)) / max(float(np.linalg.norm(x)), 1e-30)
    for digits in (1, 2, 3, 5):
        factor, attention = float(f"{np.exp(best):.{digits}g}"), float(f"{length:.7g}")
        if factor != rope.factor:
            detail = f"factor {factor:g} instead of {rope.factor:g}"
            yield "rope-theta", detail, {"rope": replace(rope, factor=factor)}
            if abs(attention - rope.attention_factor) > 1e-4:
                other = replace(rope, factor=factor, attention_factor=attention)
                yield "rope-theta", f"{detail}, attention_factor {attention:g}", {"rope": other}


def _angles(node: Node, x: Array, got: Array) -> NDArray[np.float64]:
    """How far each pair was turned, over all heads."""
    if node.mistakes.get("pairing") == "interleaved":
        before, after = x[..., 0::2] + 1j * x[..., 1::2], got[..., 0::2] + 1j * got[..., 1::2]
    else:
        half = x.shape[-1] // 2
        before, after = x[..., :half] + 1j * x[..., half:], got[..., :half] + 1j * got[..., half:]
    angles: NDArray[np.float64] = np.angle((after * before.conj()).sum(axis=1))
    return angles


def _refined(theta: float, angles: NDArray[np.float64], positions: NDArray[np.int64], half: int) -> float:
    """Follow the angle of each pair out to the last position, where it says most about the base."""
    exponent = np.arange(half) / half
    turns = positions - positions[0]  # from the first token on: a shift of all positions is another mistake
    for reach in (4, 16, 64, 256, 1024):
        near = (turns > 0) & (turns <= reach)
        if not near.any():
            break
        frequency = theta**-exponent
        expected = turns[near][:, None] * frequency
        missing = np.angle(np.exp(1j * (angles[near] - angles[0] - expected)))
        # d(angle)/d(log theta) = -exponent * angle
        slope = -exponent * expected
        change = float((slope * missing).sum() / (slope * slope).sum()) if slope.any() else 0.0
        if not np.isfinite(change) or abs(change) > 0.5:
            break
        theta *= float(np.exp(change))
    return theta


def _norm(
    node: Node, inputs: Sequence[Array], got: Array, context: Context
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    (x,) = inputs
    weight = context.weights.array(node.params["weight"], F64) + node.mistakes.get("offset", 0)
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
    error = (got - expected).reshape(-1, got.shape[-1])
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
    if node.name != "lm_head":
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
