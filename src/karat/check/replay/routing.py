"""Choices of experts, compared by the logits of what was chosen: near a tie, rounding decides which expert it is."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

import numpy as np
from numpy.typing import NDArray

from karat.check.replay.distances import distance
from karat.check.replay.finding import Array

# Of the largest logit, in units of an engine's precision: what the exponentials of a softmax over all logits confuse.
_CONFUSED = 4


def logits_of(ids: Array, logits: Array) -> Array:
    """The logits [rows, chosen] of the experts `ids`, the largest first; NaN for an id that is none."""
    known = (ids >= 0) & (ids < logits.shape[-1]) & (ids == np.floor(ids))
    taken: Array = np.take_along_axis(logits, np.where(known, ids, 0).astype(np.int64), axis=-1)
    taken = np.where(known, taken, np.nan)
    repeated = np.sort(ids, axis=-1)
    taken[(repeated[:, 1:] == repeated[:, :-1]).any(axis=-1)] = np.nan
    return np.sort(taken, axis=-1)[:, ::-1]


def floor_of(logits: Array, unit: float, spread: Array | float = 0.0) -> Array:
    """How far apart two logits [rows, experts] may be whose order rounding decides, [rows, 1].

    spread: how far rounding moves each logit. Two may move towards each other.
    """
    sizes = np.abs(np.nan_to_num(logits, nan=0, posinf=0, neginf=0)).max(axis=-1, keepdims=True)
    return np.maximum(_CONFUSED * unit * sizes, 2 * np.max(spread * np.ones_like(logits), axis=-1, keepdims=True))


def is_close(ids: Array, right: Array, logits: Array, floor: Array) -> NDArray[np.bool_]:
    """The rows [rows, 1] in which the experts `ids` are as good as the `right` ones."""
    error = distance(logits_of(ids, logits), logits_of(right, logits))
    return np.logical_and.reduce(error <= floor, axis=-1, keepdims=True)
