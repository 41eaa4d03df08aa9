"""An op that computes in a narrower type: its roundings are repeated, and nearly all values come out bit by bit.

Near a tie a number falls to either side, so a rounding is told by how many values it gives, and not by the largest
error. Of another type, or of another place in the op, nearly none come out. Where results between are missing, all ops
of a kind are tried at once, then those of each role.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from karat.check.diagnosis.budget import SearchBudget
from karat.check.diagnosis.parted import Parted, degrees
from karat.check.diagnosis.verdict import BugExplanation
from karat.check.mistakes.cache import TYPES, other_cache_text
from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.linear import ROW_PARALLEL
from karat.check.mistakes.narrow import IN_PART, INSIDE, OF_RANKS, edits
from karat.check.mistakes.part import Part
from karat.check.mistakes.parts import within
from karat.check.model.graph import Edits, Node
from karat.check.replay.distances import distance
from karat.check.replay.finding import Array, Finding
from karat.check.replay.noise import PRECISION
from karat.check.replay.replay import Replay
from karat.config import FloatName

Mask = NDArray[np.bool_]
_TYPES: tuple[FloatName, ...] = ("bfloat16", "float16")
_GIVEN = 0.97  # of the wrong values, and of all, to within _NEAR floors
_NEAR = 5.0
_PARTS = 2  # parts of the tokens in which a rounding is tried
_FEW = 16  # wrong values that are too few to tell
_TAKEN_OFF = 10.0  # by what roundings divide the error, root mean square; those of another op by 2 at most
_ROWS, _OF_ROWS = 4, 0.25  # of the wrong rows of a result of several ops, those that are given: how many, which share
_TIES = 16  # units of the type in the largest value of a row: what a number on the other side of a tie may differ by


def narrow(
    replay: Replay, finding: Finding, budget: SearchBudget, among: Collection[str] | None = None
) -> list[BugExplanation]:
    """The roundings inside ops of the segment of a wrong result that give its values, within the time.

    among: details of those that are tried; None: all.
    """
    wrong = replay.wrong(finding.name)
    if wrong is None or wrong.sum() < _FEW:
        return []
    recorded = _Recorded.of(replay, finding, wrong)
    found: list[tuple[float, BugExplanation]] = []
    where = ""
    for variants, unit in _proposed(replay, finding):
        before, where = where, variants[0].detail.partition(":")[0]
        if budget.is_spent or (found and where != before):
            break  # what is found in some ops is not in others
        if (among is None or variants[0].detail in among) and (given := recorded.given_by(variants, unit)):
            found.append(given)
    most = max((share for share, _ in found), default=0.0)
    return [explanation for share, explanation in found if share == most]


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """A wrong result beside the right one. All arrays have its shape, or broadcast to it."""

    replay: Replay
    finding: Finding
    wrong: Mask
    right: Array
    floor: Array
    there: Mask  # the values that the trace has

    @classmethod
    def of(cls, replay: Replay, finding: Finding, wrong: Mask) -> Self:
        right, present = replay.run(finding.segment), replay.recorded[finding.name].present
        floor = np.broadcast_to(replay.floor(finding.segment, right), right.shape)
        there = np.ones(right.shape, bool) if present is None else np.broadcast_to(present, right.shape)
        return cls(replay, finding, wrong, right, floor, there)

    def given_by(self, variants: Sequence[Variant], unit: float) -> tuple[float, BugExplanation] | None:
        """The share of the wrong values that roundings to a type of this unit give; None if they do not explain it.

        variants: one rounding with numbers that may differ by row. Row by row, the one that is nearest counts.
        """
        recorded = self.replay.recorded[self.finding.name].values
        expected, error = self.right, np.full(self.right.shape, np.inf)
        for variant in variants:
            result = self.replay.run(self.finding.segment, variant.edits)
            far = np.where(self.there, distance(recorded, result), 0)
            is_nearer = far.mean(axis=-1, keepdims=True) < error.mean(axis=-1, keepdims=True)
            expected, error = np.where(is_nearer, result, expected), np.where(is_nearer, far, error)
        ratio = np.divide(error, self.floor, out=np.full(error.shape, np.inf), where=self.floor > 0)
        ratio[error == 0] = 0
        given, wrong = ratio <= _NEAR, self.wrong
        share = float(given[wrong].mean())
        size = np.where(np.isfinite(expected), np.abs(expected), 0).max(axis=-1, keepdims=True)
        if (error > _TIES * unit * size).any():
            return None
        is_whole = share >= _GIVEN and given[self.there].mean() >= _GIVEN
        if not is_whole and (len(self.finding.segment) == 1 or not (self._by_rows(given) or self._by_size(error))):
            return None
        left, most_off = (float(np.quantile(of[wrong], min(share, _GIVEN), method="lower")) for of in (ratio, error))
        return share, BugExplanation((variants[0],), left, most_off)

    def _by_rows(self, given: Mask) -> bool:
        """Whether enough wrong rows are given: another mistake gives none.

        One number on the other side of a tie changes all that is computed of it: a row of a layer and, through
        attention, the rows behind it.
        """
        rows = given.mean(axis=-1)[self.wrong.any(axis=-1)] >= _GIVEN
        return rows.sum() >= _ROWS and bool(rows.mean() >= _OF_ROWS)

    def _by_size(self, left: Array) -> bool:
        """Whether the roundings take off nearly all of the error: what is left are a few ties of thousands."""
        error = distance(self.replay.recorded[self.finding.name].values, self.right)[self.wrong]
        return bool(np.square(left[self.wrong]).sum() * _TAKEN_OFF**2 <= np.square(error).sum())


def _proposed(replay: Replay, finding: Finding) -> Iterator[tuple[list[Variant], float]]:
    """Roundings everywhere, and of one op in the steps or sequences that are wrong."""
    yield from _caches(replay, finding.segment)
    yield from _variants(replay, finding.segment, {})
    for rows in Parted(replay, finding).rows_of_wrong()[:_PARTS] if len(finding.segment) == 1 else ():
        for variants, unit in _variants(replay, finding.segment, IN_PART):
            made = [within(variant, Part(rows=rows), replay.graph) for variant in variants]
            yield [variant for variant in made if variant], unit


def _caches(replay: Replay, names: Sequence[str]) -> Iterator[tuple[list[Variant], float]]:
    """Caches of another type than is stated, in the ops of one layer: over more the statement is believed."""
    read = [name for name in names if replay.graph.nodes[name].kind in ("scores", "mix")]
    stated = replay.trace.info.kv_dtype
    if len(names) > 1 and len(read) == 2 and stated is not None:
        for dtype in (dtype for dtype in TYPES if dtype != stated):
            edits: Edits = {name: {"stored_as": dtype} for name in read}
            unit = max(PRECISION[dtype], PRECISION[stated])
            yield [Variant("kv-dtype", other_cache_text(dtype, stated), edits)], unit


def _variants(
    replay: Replay, names: Sequence[str], beside: Mapping[str, Sequence[str]]
) -> Iterator[tuple[list[Variant], float]]:
    for dtype in _TYPES:
        if PRECISION[dtype] > replay.unit:
            for kind, role, places in _groups([replay.graph.nodes[name] for name in names]):
                for where in (*INSIDE[kind], *beside.get(kind, ()), *_of_ranks(replay, places)):
                    made: list[Edits] = [dict.fromkeys(places, params) for params in edits(kind, where, dtype)]
                    detail = f"{dtype} inside {role}: {where}"
                    yield [Variant("narrow-arithmetic", detail, each) for each in made], PRECISION[dtype]


def _of_ranks(replay: Replay, names: Sequence[str]) -> list[str]:
    """What may be rounded in these sums over ranks, if they are all such sums and their inputs can be shared out."""
    nodes = [replay.graph.nodes[name] for name in names]
    if any(node.kind != "linear" or not node.role.endswith(ROW_PARALLEL) for node in nodes):
        return []
    sizes = [replay.context.weights.shape(node.params["weight"])[1] for node in nodes]
    return [
        where
        for where, degree in OF_RANKS.items()
        if degree in degrees(replay) and all(size % degree == 0 for size in sizes)
    ]


def _groups(nodes: Sequence[Node]) -> Iterator[tuple[str, str, list[str]]]:
    """Ops that one function may compute: all of a kind, then those of each role; with what they are called."""
    for kind in INSIDE:
        roles: dict[str, list[str]] = {}
        for node in (node for node in nodes if node.kind == kind):
            roles.setdefault(node.role, []).append(node.name)
        if len(roles) > 1:
            yield kind, f"every {kind}", [name for places in roles.values() for name in places]
        sums = [name for role, places in roles.items() if role.endswith(ROW_PARALLEL) for name in places]
        if len({role for role in roles if role.endswith(ROW_PARALLEL)}) > 1:
            yield kind, "every sum over ranks", sums
        yield from ((kind, role, places) for role, places in roles.items())
