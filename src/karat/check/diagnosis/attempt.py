"""Whether known mistakes give a wrong result: computed with them, it is the recorded one but for rounding."""

from typing import Any

import numpy as np

from karat.check.diagnosis.known_mistakes import merged
from karat.check.diagnosis.verdict import BugExplanation
from karat.check.mistakes.catalogue import Variant
from karat.check.model.graph import Edits
from karat.check.replay.distances import distance
from karat.check.replay.finding import LIMIT, Array, Finding
from karat.check.replay.replay import Replay

# A mistake reproduces a result if the error that is left is rounding. Healthy ops stay below 4 (replay.finding.LIMIT).
REPRODUCED = 5.0
# It also has to divide the error by this. A fit has a free number, so it has to do more.
GAIN, FIT_GAIN = 3.0, 10.0
_OVERFLOW = "overflow-fp16"  # leaves infinity or NaN; without any, float16 is a narrower type (narrow-arithmetic)


def attempt(replay: Replay, finding: Finding, variants: tuple[Variant, ...]) -> BugExplanation | None:
    """The explanation by these mistakes; None if they do not give the recorded result."""
    edits = merged(variants)
    if edits is None:
        return None
    others = {source for params in edits.values() for source in params.get("inputs", ())} - {*finding.segment}
    if not all(map(replay.is_finite, others)):
        return None  # NaN of results that follow from this one
    expected = replay.run(finding.segment, edits)
    if any(variant.bug == _OVERFLOW for variant in variants):
        is_alone = len(finding.segment) == 1
        if np.isfinite(expected).all() or (is_alone and not finding.odd):
            return None
    if not _is_close(replay, finding, expected, edits):
        return None
    left = replay.judge(finding.name, finding.segment, expected, edits)
    gain = FIT_GAIN if any(variant.fitted or variant.part for variant in variants) else GAIN
    if left.ratio > REPRODUCED or left.ratio * gain > finding.ratio or not _tells(replay, finding, expected, edits):
        return None
    # A mistake with a higher floor of its own may have a small ratio without reducing the error.
    return BugExplanation(variants, left.ratio, left.error) if left.error * GAIN <= finding.error else None


def _tells(replay: Replay, finding: Finding, expected: Array, edits: Edits) -> bool:
    """Whether values are wrong that cannot be overflows under these mistakes, so that the mistakes explain them."""
    beyond = replay.overflowed(finding.name, expected, edits)
    if not beyond.any():
        return True
    recorded, right = replay.recorded[finding.name], replay.run(finding.segment)
    there: Any = True if recorded.present is None else recorded.present
    error = np.where(there & ~beyond, distance(recorded.values, right), 0)
    return bool((error > LIMIT * replay.floor(finding.segment, right)).any())


def _is_close(replay: Replay, finding: Finding, expected: Array, edits: Edits) -> bool:
    """A cheap test before the floor under a mistake is measured: whether the result is roughly the recorded one."""
    recorded = replay.recorded[finding.name]
    got = recorded.values
    with np.errstate(all="ignore"):
        if recorded.present is not None:
            got = np.where(recorded.present, got, expected)
        if replay.graph.nodes[finding.name].kind == "softmax":
            got = np.where(replay.undefined(finding.name, expected), expected, got)
        got = np.where(replay.overflowed(finding.name, expected, edits), expected, got)
        if not np.array_equal(np.isnan(got), np.isnan(expected)):
            return False
        if not np.array_equal(np.isposinf(got), np.isposinf(expected)):
            return False
        if not np.array_equal(np.isneginf(got), np.isneginf(expected)):
            return False
        finite = np.isfinite(got)
        if not finite.any():
            return True
        error = np.abs(got[finite] - expected[finite]).max()
        size = np.abs(expected[finite]).max()
        # Rounding moves the result of a whole layer by far less than this share of its largest value.
        return bool(error <= max(0.02, 200 * replay.unit) * size) if size else bool(error == 0)
