"""Two mistakes at one place: pairs of all that may have been made there, and of known ones with one more."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from karat.check.diagnosis.attempt import attempt
from karat.check.diagnosis.verdict import BugExplanation
from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.fitted import fits
from karat.check.mistakes.nodes import changed
from karat.check.replay.finding import Finding
from karat.check.replay.replay import Replay

IsOver = Callable[[], bool]  # whether the time is up


def pairs(replay: Replay, finding: Finding, singles: Sequence[Variant], is_over: IsOver) -> Iterator[BugExplanation]:
    """The pairs of these mistakes that give a wrong result; for one op those with a fitted number too."""
    enumerated = [variant for variant in singles if not variant.fitted and not _leaves_zeros(variant)]
    is_one = len(finding.segment) == 1
    for index, first in enumerate(enumerated):
        for second in enumerated[index + 1 :]:
            if is_over():
                return
            if explanation := attempt(replay, finding, (first, second)):
                yield explanation
        if is_one:
            yield from _with_fit(replay, finding, first, is_over)
    for first in (variant for variant in singles if variant.fitted and is_one):
        yield from _with_fit(replay, finding, first, is_over)


def beside(
    replay: Replay,
    finding: Finding,
    known: Iterable[tuple[Variant, ...]],
    singles: Sequence[Variant],
    is_over: IsOver,
) -> Iterator[BugExplanation]:
    """Known mistakes, each with one more of `singles`, that give a wrong result."""
    for variants in known:
        for single in (single for single in singles if not _leaves_zeros(single)):
            if is_over():
                return
            if explanation := attempt(replay, finding, (*variants, single)):
                yield explanation


def _with_fit(replay: Replay, finding: Finding, first: Variant, is_over: IsOver) -> Iterator[BugExplanation]:
    """Pairs of a mistake, and one that is fitted to the node with this mistake in it."""
    if is_over():
        return
    wrong = changed(replay.graph.nodes[finding.name], first.edits[finding.name])
    inputs = [replay.value(source) for source in wrong.inputs]
    for second in fits(wrong, inputs, replay.recorded[finding.name].values, replay.context):
        if is_over():
            return
        if explanation := attempt(replay, finding, (first, second)):
            yield explanation


def _leaves_zeros(variant: Variant) -> bool:
    """Whether a mistake leaves zeros, which hide any other mistake."""
    return any(params.get("factor") == 0 for params in variant.edits.values())
