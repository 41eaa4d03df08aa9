"""Uncertain attention: what rounding may do where it moves scores by more than the weights of attention bear.

A weight of 1e-4 becomes 0.04 or 2e-7 where scores move by 3. The largest moves have the smallest chance, so two noisy
runs do not show them, and a right engine may be a thousand times as far away as they are.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from karat.check.model.graph import Node
from karat.check.model.right.attention import kv_head_of
from karat.check.replay.distances import pooled
from karat.check.replay.finding import Array

_LARGEST_MOVE = 350.0  # of a score; exp of twice that is finite
_LARGEST_EXCESS = 1e30  # nothing is known from there on


class UncertainAttention:
    """Widens the spread of noisy runs, node by node in the order of computation.

    The excess of a token is how much further attention may take its result than in proportion to its scores' moves: at
    most 1.01 in the embedded model and 1.05 in SmolLM2-135M, with activations of 16 bits. What is computed from that
    result, by this token and those after it, has the same excess.
    """

    def __init__(self, num_tokens: int) -> None:
        self._excess: Array = np.ones(num_tokens)
        self._scores_moved: Array = np.zeros(0)  # of the last scores [heads, tokens, 1]
        self._moved: tuple[Array, Array] = np.zeros(0), np.zeros(0)  # of the last weights, see `weights_moved`

    def widened(
        self, node: Node, spread: Array, right: Array, values: Mapping[str, Array], logit_rows: NDArray[np.int64]
    ) -> Array:
        """The spread [..., 1] of the node's result `right`. values: right results that are still read, by name."""
        is_by_head = node.kind in ("scores", "softmax")
        if is_by_head:
            spread = pooled(spread)
        if node.kind == "select":
            self._excess = self._excess[logit_rows]
        before = self._excess
        if node.kind == "softmax":
            self._moved = weights_moved(right, self._scores_moved)
        if node.kind == "mix":
            most, little = (mix_moved(moved, values[node.inputs[1]]) for moved in self._moved)
            with np.errstate(all="ignore"):
                excess = np.nan_to_num(most / np.maximum(spread, little), nan=1)[:, 0]
            excess = np.maximum.accumulate(np.clip(excess, 1, _LARGEST_EXCESS))
            self._excess = np.maximum(before, excess)
        wide = spread * self._excess.reshape((1, -1, 1) if is_by_head else (-1, *[1] * (spread.ndim - 1)))
        if node.kind == "scores":
            self._scores_moved = wide
        return np.fmax(wide, self._moved[0]) if node.kind == "softmax" else wide


def weights_moved(weights: Array, scores_moved: Array) -> tuple[Array, Array]:
    """How far a weight of each row [..., 1] goes at most if every score of the row moves by up to `scores_moved`.

    And how far if it went in proportion, as it does where scores move little. A weight p moves by at most
    p (1 - p) g / (1 + min(p, 1 - p) g), with g = exp(2 moves) - 1; the proportional part is p (1 - p) 2 moves.
    """
    largest = weights.max(axis=-1, keepdims=True)
    others = weights.sum(axis=-1, keepdims=True, where=weights < largest)  # 1 - largest loses a tiny one
    moves = np.minimum(scores_moved, _LARGEST_MOVE)
    p = np.minimum(largest, np.maximum(1 - largest, others))
    little = 2 * moves * p * (1 - p)
    p = np.minimum(p, 1 / (1 + np.exp(moves)))  # up to here the move grows with p
    growth = np.expm1(2 * moves)
    return p * (1 - p) * growth / (1 + p * growth), little


def mix_moved(weights_moved: Array, v: Array) -> Array:
    """How far attention's result [tokens, 1] goes if the weight of a head's largest v [tokens, kv heads, d] does."""
    with np.errstate(all="ignore"):
        largest = np.nan_to_num(np.abs(v).max(axis=(0, 2)), nan=0, posinf=0)
        by_head = largest[kv_head_of(len(weights_moved), v.shape[1])]
        moved: Array = (weights_moved[..., 0] * by_head[:, None]).max(axis=0)[:, None]
    return moved
