"""Where a named mistake cannot be seen: results that are the recorded ones with it and without it, to rounding.

A mistake that one class makes in all layers moves some of their results by less than rounding does. Such a place is
said beside the places where it shows, but only if no result of the same role is right and would show it.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from karat.check.diagnosis.explain import Explainer
from karat.check.diagnosis.known_mistakes import merged
from karat.check.diagnosis.verdict import BugExplanation, Named, Wrong
from karat.check.mistakes.catalogue import Variant
from karat.check.replay.distances import distance
from karat.check.replay.finding import LIMIT
from karat.check.replay.replay import Replay
from karat.models.decoder import end_names


def below_floor(named: Named, wrong: Mapping[str, Wrong], replay: Replay, explainer: Explainer) -> tuple[str, ...]:
    """The results in which this bug cannot be seen, in order.

    wrong: the wrong results by name, whatever explains them.
    """
    found: list[str] = []
    best: dict[str, BugExplanation] = {}  # by role
    for name in named.places:
        item = wrong[name]
        best.setdefault(item.role, next(e for e in item.explanations if e.bugs in named.classes))
    for role, explanation in best.items():
        places = [node.name for node in replay.graph.nodes.values() if node.role == role and node.layer is not None]
        hidden = [name for name in places if name not in wrong and _is_judged(name, replay)]
        if all(_hides(name, _moved(name, explanation, replay, explainer), replay) for name in hidden):
            found += hidden
    if found or len(named.places) > 1:
        ends = (name for name in end_names(replay.graph.config) if name not in wrong and _is_judged(name, replay))
        for name in ends:
            variants = {v.key: v for e in best.values() for v in e.variants if len(e.variants) == 1}
            after = [v for variant in variants.values() for v in _of_all_norms(variant, name, replay, explainer)]
            if after and any(_hides(name, (variant,), replay) for variant in after):
                found.append(name)
    return tuple(sorted(found, key=replay.graph.order.__getitem__))


def _is_judged(name: str, replay: Replay) -> bool:
    return name in replay.recorded and name not in replay.beyond_judging and not replay.is_partial(name)


def _moved(name: str, explanation: BugExplanation, replay: Replay, explainer: Explainer) -> tuple[Variant, ...] | None:
    return next(explainer.moved(replay.segment(name), [explanation.variants]), None)


def _of_all_norms(variant: Variant, name: str, replay: Replay, explainer: Explainer) -> Iterator[Variant]:
    """The same mistake of the final norm: one class serves all norms."""
    if variant.bug.startswith("norm-"):
        what = variant.detail.rpartition(": ")[2]
        for other in explainer.proposals.enumerated(replay.segment(name)):
            if other.bug == variant.bug and other.detail == what and not other.outside:
                yield other


def _hides(name: str, variants: tuple[Variant, ...] | None, replay: Replay) -> bool:
    """Whether the recorded result is also what these mistakes give, to rounding."""
    edits = merged(variants) if variants else None
    if not edits:
        return False
    with np.errstate(all="ignore"):
        error = distance(replay.recorded[name].values, replay.run(replay.segment(name), edits))
        return bool((error <= LIMIT * replay.floors.get(name, 0.0)).all())
