"""Choices of experts, compared by the marks of what was chosen: near a tie, rounding decides which expert it is.

Marks are what experts are ranked by: logits, or scores with their bias. Scores of a sigmoid are marks in any case: it
saturates, so rounding may rank experts whose logits are far apart.
"""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

import numpy as np
from numpy.typing import NDArray

from karat.check.model.context import Weights
from karat.check.model.right.experts import routing_scores
from karat.check.replay.distances import distance
from karat.check.replay.finding import F64, Array
from karat.ops.api import Routing

# Of the largest mark, in units of an engine's precision: what the exponentials of a softmax over all logits confuse.
_CONFUSED = 4
_STEEPEST = {"sigmoid": 1 / 4, "softmax": 1 / 2}  # how far a score moves at most, if no logit moves by more than 1


def marks_of(logits: Array, rule: Routing, weights: Weights) -> Array:
    """The mark [rows, experts] of each expert. `rule` has the name of its bias."""
    if _by_logit(rule):
        return logits
    scores = routing_scores(logits.astype(F64), rule)
    return scores if rule.bias is None else scores + weights.array(rule.bias, np.dtype(F64))


def of_chosen(ids: Array, marks: Array) -> Array:
    """The marks [rows, chosen] of the experts `ids`, the largest first; NaN for an id that is none."""
    known = (ids >= 0) & (ids < marks.shape[-1]) & (ids == np.floor(ids))
    taken: Array = np.take_along_axis(marks, np.where(known, ids, 0).astype(np.int64), axis=-1)
    taken = np.where(known, taken, np.nan)
    repeated = np.sort(ids, axis=-1)
    taken[(repeated[:, 1:] == repeated[:, :-1]).any(axis=-1)] = np.nan
    return np.sort(taken, axis=-1)[:, ::-1]


def floor_of(marks: Array, rule: Routing, unit: float, spread: Array | float = 0.0) -> Array:
    """How far apart two marks [rows, experts] may be whose order rounding decides, [rows, 1].

    spread: how far rounding moves each logit. Two may move towards each other.
    """
    sizes = np.abs(np.nan_to_num(marks, nan=0, posinf=0, neginf=0)).max(axis=-1, keepdims=True)
    moved = (1.0 if _by_logit(rule) else _STEEPEST[rule.score]) * np.asarray(spread)
    return np.maximum(_CONFUSED * unit * sizes, 2 * np.max(moved * np.ones_like(marks), axis=-1, keepdims=True))


def _by_logit(rule: Routing) -> bool:
    return rule.by_logit and rule.score == "softmax"


def is_close(ids: Array, right: Array, marks: Array, floor: Array) -> NDArray[np.bool_]:
    """The rows [rows, 1] in which the experts `ids` are as good as the `right` ones."""
    error = distance(of_chosen(ids, marks), of_chosen(right, marks))
    return np.logical_and.reduce(error <= floor, axis=-1, keepdims=True)
