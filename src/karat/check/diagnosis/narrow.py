"""One op that computes in a narrower type: its roundings are repeated, and nearly all values come out bit by bit.

Near a tie a number falls to either side, so a rounding is told by how many values it gives, and not by the largest
error. Of another type, or of another place in the op, nearly none come out.
"""

from collections.abc import Iterator

import numpy as np

from karat.check.diagnosis.verdict import BugExplanation
from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.narrow import INSIDE, edits
from karat.check.model.graph import Edits
from karat.check.replay.distances import distance
from karat.check.replay.finding import Finding
from karat.check.replay.noise import PRECISION
from karat.check.replay.replay import Replay
from karat.config import FloatName

_TYPES: tuple[FloatName, ...] = ("bfloat16", "float16")
_GIVEN = 0.97  # of the wrong values, and of all, to within _NEAR floors
_NEAR = 5.0
_FEW = 16  # wrong values that are too few to tell
_TIES = 16  # units of the type in the largest value of a row: what a number on the other side of a tie may differ by


def narrow(replay: Replay, finding: Finding) -> list[BugExplanation]:
    """The roundings inside the one op of a wrong result that give its values, the best first."""
    node = replay.graph.nodes[finding.name]
    wrong = replay.wrong(finding.name)
    if len(finding.segment) > 1 or node.kind not in INSIDE or wrong is None or wrong.sum() < _FEW:
        return []
    recorded = replay.recorded[finding.name]
    right = replay.run(finding.segment)
    floor = np.broadcast_to(replay.floor(finding.segment, right), right.shape)
    there = np.ones(right.shape, bool) if recorded.present is None else np.broadcast_to(recorded.present, right.shape)
    found = []
    for variants, dtype in _variants(replay, finding.name):
        variant, expected, error = variants[0], right, np.full(right.shape, np.inf)
        for other in variants:  # row by row, the one that is nearest
            result = replay.run(finding.segment, other.edits)
            far = np.where(there, distance(recorded.values, result), 0)
            is_nearer = far.mean(axis=-1, keepdims=True) < error.mean(axis=-1, keepdims=True)
            expected, error = np.where(is_nearer, result, expected), np.where(is_nearer, far, error)
        ratio = np.divide(error, floor, out=np.full(error.shape, np.inf), where=floor > 0)
        ratio[error == 0] = 0
        given = ratio <= _NEAR
        size = np.where(np.isfinite(expected), np.abs(expected), 0).max(axis=-1, keepdims=True)
        is_tie = error <= _TIES * PRECISION[dtype] * size
        if given[wrong].mean() >= _GIVEN and given[there].mean() >= _GIVEN and is_tie.all():
            left = float(np.quantile(ratio[wrong], _GIVEN, method="lower"))
            most_off = float(np.quantile(error[wrong], _GIVEN, method="lower"))
            found.append((float(given[wrong].mean()), BugExplanation((variant,), left, most_off)))
    most = max((share for share, _ in found), default=0.0)
    return [explanation for share, explanation in found if share == most]


def _variants(replay: Replay, name: str) -> Iterator[tuple[list[Variant], FloatName]]:
    node = replay.graph.nodes[name]
    for dtype in _TYPES:
        if PRECISION[dtype] > replay.unit:
            for where in INSIDE[node.kind]:
                detail = f"{dtype} inside {node.role}: {where}"
                made: list[Edits] = [{name: params} for params in edits(node.kind, where, dtype)]
                yield [Variant("narrow-arithmetic", detail, each) for each in made], dtype
