"""Recorded results that carry no information, such as zeros, which many mistakes and many accidents leave behind."""

import numpy as np
from numpy.typing import NDArray

from karat.check.replay.replay import Replay

_FEW = 3  # distinct values that are too few


def emptiness(replay: Replay, name: str) -> str | None:
    """Why a recorded result cannot tell one mistake from another: it is "all zero", "constant", "not finite", or "of N
    values only". None for a result that can.

    NaN or masked scores among other values are information. Masks alone are none. Keys beyond a token's step do not
    count.
    """
    recorded, kind = replay.recorded[name], replay.graph.nodes[name].kind
    there = np.ones(1, bool) if recorded.present is None else recorded.present
    if kind in ("scores", "softmax"):
        there = there & replay.tokens.in_step
    values = recorded.values[np.broadcast_to(there, recorded.values.shape)]
    odd = np.isnan(values) | np.isinf(values)
    if kind == "scores" and not (np.isnan(values) | np.isposinf(values)).any():
        values = values[~odd]
        odd = np.zeros(values.shape, bool)
    if odd.any():
        kinds = (np.isnan(values), np.isposinf(values), np.isneginf(values), ~odd)
        return None if sum(bool(found.any()) for found in kinds) > 1 else "not finite"
    few = _distinct(values, _FEW + 1)
    if len(few) > _FEW:
        return None
    if few in ([], [0.0]):
        return "all zero"
    return "constant" if len(few) == 1 else f"of {len(few)} values only"


def _distinct(values: NDArray[np.floating], most: int) -> list[float]:
    """The first distinct values, at most `most`."""
    found: list[float] = []
    rest = values.reshape(-1)
    while rest.size and len(found) < most:
        found.append(float(rest[0]) + 0.0)
        rest = rest[rest != rest[0]]
    return found
