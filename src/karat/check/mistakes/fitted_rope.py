"""RoPE with other numbers, fitted to how far it turned each token: a shift or an end of positions, a base, a factor."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.rope import position_map
from karat.check.model.context import Array, Context
from karat.check.model.graph import Node
from karat.config import RopeConfig
from karat.ops.rope_table import exponents, scaled_frequencies

_FEW_TOKENS = 64


def fits(
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
    yield from _bounded(angles, positions, frequencies, context.tokens.context)
    # The base: from the turn between two tokens that follow each other.
    steps = np.flatnonzero(np.diff(positions) == 1)
    if len(steps) and half > 1:
        turn = np.median(np.angle(np.exp(1j * (angles[steps + 1] - angles[steps]))), axis=0) / turned  # [half]
        good = turn > 0
        good[0] = False  # the first pair turns by 1 whatever the base
        good &= frequencies != 0
        if good.any():
            exponent = np.arange(half) / half
            theta = float(np.exp(np.median(-np.log(turn[good]) / exponent[good])))
            plain = RopeConfig(theta=2.0)
            yield from _rounded_theta(plain, _refined(plain, theta, angles, turned * positions), rope)
        if rope.rope_type not in ("default", "proportional"):
            theta = _refined(rope, _searched(rope, turn), angles, turned * positions)
            yield from _rounded_theta(rope, theta, rope)
        if rope.rope_type in ("linear", "llama3", "yarn"):
            yield from _other_factor(rope, turn, inputs[0], got)


def _bounded(
    angles: NDArray[np.float64], positions: NDArray[np.int64], frequencies: NDArray[np.float64], context: int
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Positions that end at a number, or go round there: as those of tokens behind the end of a table."""
    last = int(np.argmax(positions))
    every = np.arange(context)[:, None] * frequencies  # [positions, pairs]
    found = int(np.argmin(np.abs(np.exp(1j * angles[last]) - np.exp(1j * every)).sum(axis=1)))
    apart = int(positions[last]) - found
    if apart <= 0:
        return
    if found:  # at position 0 nothing turns, which is another mistake
        yield "rope-position", f"position {found} for all after it", {"positions": ("clipped", found)}
    some = np.linspace(0, len(positions) - 1, min(len(positions), _FEW_TOKENS)).astype(np.int64)

    def left(size: int) -> float:
        there = (positions[some] % size)[:, None] * frequencies
        return float(np.abs(np.exp(1j * angles[some]) - np.exp(1j * there)).sum())

    sizes = [size for size in range(max(found + 1, 2), apart + 1) if apart % size == 0]
    if sizes:
        size = min(sizes, key=left)
        yield "rope-position", f"positions from {size} on count from 0 again", {"positions": ("wrapped", size)}


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


def _searched(rope: RopeConfig, turn: NDArray[np.float64]) -> float:
    """The base under which the scaled frequencies come closest to the turns."""

    def distance(log_theta: float) -> float:
        frequencies = _frequencies(replace(rope, theta=float(np.exp(log_theta))), len(turn))
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
        frequencies = _frequencies(replace(rope, factor=float(np.exp(log_factor))), len(turn))
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


def _frequencies(rope: RopeConfig, half: int) -> NDArray[np.float64]:
    """The model's frequencies but for a float32's last bit, in a hundredth of the time."""
    wavelengths = rope.theta ** exponents(2 * half).astype(np.float64)
    return scaled_frequencies(rope, wavelengths.astype(np.float32)).astype(np.float64)


def _angles(node: Node, x: Array, got: Array) -> NDArray[np.float64]:
    """How far each pair was turned, over all heads."""
    if node.mistakes.get("pairing") == "interleaved":
        before, after = x[..., 0::2] + 1j * x[..., 1::2], got[..., 0::2] + 1j * got[..., 1::2]
    else:
        half = x.shape[-1] // 2
        before, after = x[..., :half] + 1j * x[..., half:], got[..., :half] + 1j * got[..., half:]
    angles: NDArray[np.float64] = np.angle((after * before.conj()).sum(axis=1))
    return angles


def _refined(rope: RopeConfig, theta: float, angles: NDArray[np.float64], positions: NDArray[np.int64]) -> float:
    """The base of such a RoPE, near `theta`: the angle of each pair is followed out to the last position, where it says
    most about the base."""
    turns = positions - positions[0]  # from the first token on: a shift of all positions is another mistake

    def frequencies(theta: float) -> NDArray[np.float64]:
        return _frequencies(replace(rope, theta=theta), angles.shape[1])

    for reach in (4, 16, 64, 256, 1024, 1024):
        near = (turns > 0) & (turns <= reach)
        if not near.any():
            break
        far = turns[near][:, None]
        missing = np.angle(np.exp(1j * (angles[near] - angles[0] - far * frequencies(theta))))
        step = 1e-4  # of log theta: longer than float32's roundings
        slope = far * (frequencies(theta * math.exp(step)) - frequencies(theta * math.exp(-step))) / (2 * step)
        change = float((slope * missing).sum() / (slope * slope).sum()) if slope.any() else 0.0
        if not np.isfinite(change) or abs(change) > 0.5:
            break
        theta *= math.exp(change)
    return theta
