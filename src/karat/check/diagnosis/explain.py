"""Explaining a wrong result: it is computed again with every known mistake, and with pairs of them.

Mistakes that reproduce the recorded numbers (karat.check.diagnosis.attempt) equally well are one class, and the class
is what is reported.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from karat.check.diagnosis.attempt import attempt
from karat.check.diagnosis.budget import SearchBudget
from karat.check.diagnosis.fitted_head import other_head
from karat.check.diagnosis.known_mistakes import KnownMistakes
from karat.check.diagnosis.narrow import narrow
from karat.check.diagnosis.pairs import beside, pairs
from karat.check.diagnosis.parted import Parted, degrees
from karat.check.diagnosis.proposals import Proposals, Scope, frozen
from karat.check.diagnosis.searched import from_where_it_begins, of_each, same_by_factor, same_by_zeros, searched
from karat.check.diagnosis.verdict import BugExplanation
from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.enumerate import Enumeration
from karat.check.mistakes.parts import within
from karat.check.replay.finding import Finding
from karat.check.replay.replay import Replay

Search = Callable[[Finding], Iterable[BugExplanation]]
EVERYTHING = "any mistake"
DEARER = "mistakes in parts, of other numbers, and in pairs"
_SHOWN = 6
_OF_PARTS = (1, 1.5, 3.5)  # the costs of searches for mistakes in parts
# Mistakes at several results that are proposed for every choice of them; so one that is made at others is not this one.
_LISTED_BY_PLACES = frozenset({"rope-before-bias"})
_LAST = "layer-prefix"  # most variants of a deep model; over several ops, where a try is slow, they are tried last


class Explainer:
    """The search for explanations in one trace beside its model.

    `seconds` bounds each search for two mistakes at one place, and each for mistakes in parts where results between are
    missing; `budget` bounds all searches together. `progress` is called with what is being tried.
    """

    def __init__(
        self,
        replay: Replay,
        enumeration: Enumeration,
        known: KnownMistakes,
        *,
        seconds: float,
        budget: SearchBudget,
        progress: Callable[[str], None],
    ) -> None:
        self.replay, self.graph = replay, replay.graph
        self._seconds, self._budget, self._progress = seconds, budget, progress
        self.proposals = Proposals(replay, enumeration)
        self._known = known
        self._pairs_found: dict[
            tuple[tuple[str, str], ...], None
        ] = {}  # pairs found so far; other results try them first
        self._alone: dict[str, list[BugExplanation]] = {}  # single mistakes that explain a result, by its name
        self._roundings: set[str] = set()  # details of roundings to a narrower type that were found
        self._not_tried: list[str] = []
        self._until = math.inf  # of the search that is going on
        self._spent: dict[str, float] = {}  # seconds, by result, on mistakes in parts

    def explain(self, finding: Finding, effort: int) -> tuple[list[BugExplanation], str]:
        """The explanations of one wrong result by mistakes of one effort, the best first; and what was not tried.

        effort: an index of `costs(finding)`. The time may be up before all is tried.
        """
        self._not_tried = []
        if self._budget.is_spent and (effort or finding.name not in self._alone):
            return [], DEARER if effort else EVERYTHING
        cost, search = self._efforts(finding)[effort]
        in_parts = cost in _OF_PARTS and len(finding.segment) > 1
        start, spent = time.monotonic(), self._spent.get(finding.name, 0.0)
        self._until = start + self._seconds - spent if in_parts else math.inf
        found = list(search(finding))
        if in_parts:
            self._spent[finding.name] = spent + time.monotonic() - start
        # A mistake that is not made where it would have been as well gives way to others.
        found = [e for e in found if not self._is_contradicted(e)] or found
        found = list({tuple((v.bug, frozen(v.edits)) for v in e.variants): e for e in reversed(found)}.values())[::-1]
        stated = {_parameters(e) for e in found if not any(v.fitted for v in e.variants)}
        # A fit of the same parameters as an enumerated mistake is that mistake.
        found = [e for e in found if not any(v.fitted for v in e.variants) or _parameters(e) not in stated]
        unique = {explanation.key: explanation for explanation in sorted(found, key=lambda e: -e.ratio)}
        explanations = sorted(unique.values(), key=lambda e: e.ratio)
        self._pairs_found |= dict.fromkeys(e.key for e in explanations if len(e.variants) == 2)
        return explanations, _shortened(dict.fromkeys(self._not_tried))

    def _is_contradicted(self, explanation: BugExplanation) -> bool:
        """Whether a mistake would change another recorded result, too, which is right."""
        replay = self.replay
        listed = (variant for variant in explanation.variants if variant.bug in _LISTED_BY_PLACES)
        edits = {name: params for variant in listed for name, params in variant.outside.items()}
        for name in (name for name in edits if name in replay.recorded and replay.wrong(name) is None):
            names = replay.segment(name)
            if replay.judge(name, names, replay.run(names, {name: edits[name]}), {name: edits[name]}).is_wrong:
                return True
        return False

    def costs(self, finding: Finding) -> list[float]:
        """The cost of each effort for a result: at a place, what is cheaper comes first."""
        return [cost for cost, _ in self._efforts(finding)]

    def _efforts(self, finding: Finding) -> list[tuple[float, Search]]:
        if len(finding.segment) == 1:
            return [
                (0, self.alone),
                (1, self._narrow),
                (1, self._in_parts),
                (3, self._pairs),
                (3, self._other_heads),
            ]
        efforts = [
            (0, self.alone),
            (0.8, self._narrow),
            (1, self._in_rows("all layers")),
            (1.5, self._on_ranks("all layers", degrees(self.replay)[:1])),
            (0.5, self._from_where_it_begins),
            (2, self._by_numbers),
            (2, self._beside_known),
            (3, self._of_other_layers),
            (3.5, self._on_ranks("all layers", degrees(self.replay)[1:])),
            (5, self._pairs),
            (5, self._other_heads),
        ]
        if len(self.proposals.layers(finding.segment)) > 1:
            efforts += [
                (2.5, self._in_one_layer),
                (2.7, self._by_numbers_of_each),
                (3.5, self._in_rows("one layer")),
                (3.5, self._on_ranks("one layer", degrees(self.replay))),
            ]
        return sorted(efforts, key=lambda effort: effort[0])

    def _narrow(self, finding: Finding) -> list[BugExplanation]:
        """Roundings to a narrower type."""
        found = narrow(self.replay, finding, self._budget)
        self._roundings |= {variant.detail for e in found for variant in e.variants}
        return found

    def _other_heads(self, finding: Finding) -> Iterator[BugExplanation]:
        if self.is_head_alone(finding) and (found := other_head(self.replay, finding)):
            yield found

    def with_known(self, finding: Finding, known: Iterable[tuple[Variant, ...]]) -> list[BugExplanation]:
        """The explanations of this result by mistakes of other results, moved to its layers; the best first."""
        moved = self.moved(finding.segment, known)
        found = [e for variants in moved if (e := self.attempt(finding, variants))]
        if not found and self._roundings:
            return narrow(self.replay, finding, SearchBudget(), self._roundings)
        return sorted(found, key=lambda e: e.ratio)

    def moved(self, names: Sequence[str], known: Iterable[tuple[Variant, ...]]) -> Iterator[tuple[Variant, ...]]:
        """Those of these mistakes of other results that can be made in a segment, made there."""
        layers = self.proposals.layers(names)
        here = {v.key: v for v in self.proposals.enumerated(tuple(names))}
        for variants in known:
            moved = [self._here(v, here, layers, names) for v in variants]
            if None not in moved:
                yield tuple(v for v in moved if v is not None)

    def _here(
        self, variant: Variant, here: Mapping[Any, Variant], layers: Sequence[int], names: Sequence[str]
    ) -> Variant | None:
        """A mistake of another result at this one; None if it cannot be made here."""
        if (whole := here.get((variant.bug, variant.detail))) is not None:
            return whole if variant.part is None else within(whole, variant.part, self.graph)
        return _moved(variant, self.replay, layers, names) if variant.fitted else None

    def singles(self, names: tuple[str, ...], name: str) -> Iterator[Variant]:
        """The mistakes that change the segment `names` of a result."""
        return self.proposals.singles(names, name)

    def is_head_alone(self, finding: Finding) -> bool:
        """Whether a result is the logits, computed after the layers."""
        behind = all(self.graph.nodes[name].layer is None for name in finding.segment)
        return finding.name == "lm_head" and behind

    def alone(self, finding: Finding) -> list[BugExplanation]:
        """The single mistakes that reproduce a wrong result; searched for once."""
        if finding.name not in self._alone:
            self._alone[finding.name] = self._found(finding)
        return self._alone[finding.name]

    def alone_or_by_numbers(self, finding: Finding) -> list[BugExplanation]:
        """The same, or else those whose number has to be searched for, or those of one layer of several."""
        for search in (self.alone, self._by_numbers, self._in_one_layer, self._by_numbers_of_each):
            if found := list(search(finding)):
                return found
        return []

    def _found(self, finding: Finding) -> list[BugExplanation]:
        singles = self.proposals.singles(finding.segment, finding.name, "all layers")
        if len(finding.segment) == 1:
            return list(self._all_of(finding, list(singles)))
        found = list(self._all_of(finding, [variant for variant in singles if variant.bug != _LAST]))
        named = [variant for e in found for variant in e.variants]
        others = [*same_by_factor(self.replay, finding, named), *same_by_zeros(self.replay, finding, named)]
        return found + [e for variant in others if (e := self.attempt(finding, (variant,)))]

    def _from_where_it_begins(self, finding: Finding) -> Iterator[BugExplanation]:
        return self._all_of(finding, list(from_where_it_begins(self.replay, finding)))

    def _by_numbers(self, finding: Finding) -> Iterator[BugExplanation]:
        """Mistakes with a number that is searched for."""
        return self._reproducing(finding, searched)

    def _by_numbers_of_each(self, finding: Finding) -> Iterator[BugExplanation]:
        """The same of one op of several layers."""
        if len(self.proposals.layers(finding.segment)) > 1:
            yield from self._reproducing(finding, of_each)

    def _beside_known(self, finding: Finding) -> Iterator[BugExplanation]:
        """A mistake of other results, and one more."""
        known = list(self.moved(finding.segment, self._known.best()))
        singles = list(self.proposals.enumerated(finding.segment)) if known else []
        return beside(self.replay, finding, known, singles, lambda: self._budget.is_spent)

    def _of_other_layers(self, finding: Finding) -> Iterator[BugExplanation]:
        singles = self.proposals.singles(finding.segment, finding.name)
        return self._all_of(finding, [variant for variant in singles if variant.bug == _LAST])

    def _in_parts(self, finding: Finding) -> Iterator[BugExplanation]:
        """Mistakes of one op in a part of its result."""
        parted = Parted(self.replay, finding)
        singles = [variant for variant in self.proposals.singles(finding.segment, finding.name) if not variant.fitted]
        return self._all_of(finding, [*parted.variants([*singles, *parted.fits()]), *parted.caches()])

    def _in_one_layer(self, finding: Finding) -> list[BugExplanation]:
        """Mistakes of one of several layers."""
        singles = self.proposals.singles(finding.segment, finding.name, "one layer")
        found = list(self._all_of(finding, [variant for variant in singles if variant.bug != _LAST]))
        others = same_by_zeros(self.replay, finding, [variant for e in found for variant in e.variants])
        return found + [e for variant in others if (e := self.attempt(finding, (variant,)))]

    def _in_rows(self, scope: Scope) -> Search:
        """Mistakes of several ops in the steps or sequences that are wrong."""
        return lambda finding: self._all_of(finding, list(self.proposals.in_rows(finding, scope)))

    def _on_ranks(self, scope: Scope, of: Sequence[int]) -> Search:
        """Mistakes of several ops on one of so many ranks."""
        return lambda finding: self._all_of(finding, list(self.proposals.on_ranks(finding, of, scope)))

    def _all_of(self, finding: Finding, variants: Sequence[Variant]) -> Iterator[BugExplanation]:
        """The explanations among these mistakes, until the time is up."""
        for number, variant in enumerate(variants):
            if time.monotonic() > self._until:
                return
            if self._budget.is_spent:
                left = Counter(v.bug for v in variants[number:])
                self._not_tried += [f"{bug} ({count})" for bug, count in left.most_common()]
                return
            if len(finding.segment) > 1:  # one op takes no time
                self._progress(f"{finding.name}: {number} of {len(variants)} mistakes tried")
            if explanation := self.attempt(finding, (variant,)):
                yield explanation

    def _reproducing(
        self, finding: Finding, search: Callable[[Replay, Finding, SearchBudget], Iterator[Variant]]
    ) -> Iterator[BugExplanation]:
        """Those of free numbers of ops that are not recorded which give the result, until the time is up."""
        if not self._budget.is_spent:
            self._progress(f"{finding.name}: numbers are searched for")
        for variant in search(self.replay, finding, self._budget):
            if explanation := self.attempt(finding, (variant,)):
                yield explanation
        if self._budget.is_spent:
            self._not_tried.append("other numbers (theta, eps, factors)")

    def attempt(self, finding: Finding, variants: tuple[Variant, ...]) -> BugExplanation | None:
        """The explanation by these mistakes; None if they do not give the recorded result."""
        return attempt(self.replay, finding, variants)

    def _pairs(self, finding: Finding) -> list[BugExplanation]:
        """Pairs of mistakes at one place, until the time is up; those that were found at others are all if they fit."""
        until = time.monotonic() + self._seconds
        singles = list(self.proposals.singles(finding.segment, finding.name))
        by_key = {variant.key: variant for variant in singles}
        known = [
            tuple(by_key[part] for part in key) for key in self._pairs_found if all(part in by_key for part in key)
        ]
        if found := [e for variants in known if (e := self.attempt(finding, variants))]:
            return found
        found = list(pairs(self.replay, finding, singles, lambda: self._budget.is_spent or time.monotonic() > until))
        self._not_tried += ["most pairs of mistakes"] if self._budget.is_spent else []
        return found


def _shortened(parts: Iterable[str]) -> str:
    names = list(parts)
    return ", ".join(names[:_SHOWN]) + (f", … {len(names) - _SHOWN} more kinds" if len(names) > _SHOWN else "")


def _parameters(explanation: BugExplanation) -> frozenset[tuple[str, str]]:
    return frozenset((n, key) for v in explanation.variants for n, params in v.edits.items() for key in params)


def _moved(variant: Variant, replay: Replay, layers: Sequence[int], names: Sequence[str]) -> Variant | None:
    """A mistake with a number fitted at another result, moved to these layers. Its parameters name no weights.

    Single elements of a weight are moved to weights of its shape alone.
    """
    graph, inside = replay.graph, set(names)
    edits: dict[str, Mapping[str, Any]] = {}
    for name, params in variant.edits.items():
        node = graph.nodes[name]
        places = [node] if node.layer is None else [graph.by_role[layer, node.role] for layer in layers]
        if params.keys() & {"elements", "bias_elements"}:
            shape = replay.context.weights.shape
            places = [place for place in places if shape(place.params["weight"]) == shape(node.params["weight"])]
        edits |= {place.name: params for place in places if place.name in inside}
    return replace(variant, edits=edits) if edits else None
