"""Naming a bug: an op that departs from the right computation of its own inputs, re-run with every known mistake.

A name is given only when its mistake reproduces the recorded numbers to rounding. Mistakes that reproduce them equally
well are one class, and the class is what is reported.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from karat.check.catalogue import Variant
from karat.check.degenerate import emptiness
from karat.check.distances import distance
from karat.check.fits import fits
from karat.check.graph import Graph
from karat.check.named import Diagnosis, Explanation, Wrong, diagnosis_of
from karat.check.other_head import fitted_head, tokens_wanted
from karat.check.reach import reach
from karat.check.replay import LIMIT, Array, Edits, Finding, Replay
from karat.check.search import same_by_factor, searched
from karat.check.theory import Theory, merged
from karat.check.trace import Trace
from karat.check.variants import Enumeration
from karat.check.weights import CheckpointWeights

# A mistake reproduces a result if what is left is rounding. Healthy ops stay below 4 (see karat.check.replay.LIMIT).
REPRODUCED = 5.0
# … and if it leaves so much less than the right computation does; a fit has a free number and needs more.
GAIN, FIT_GAIN = 3.0, 10.0


class Diagnoser:
    """Works on one trace and its model. `seconds` bounds the search for pairs of mistakes at one place."""

    def __init__(
        self, graph: Graph, weights: CheckpointWeights, trace: Trace, *, seed: int = 0, seconds: float = 20.0
    ) -> None:
        self.graph = graph
        self.replay = Replay(graph, weights, trace, seed=seed)
        self._enumeration = Enumeration(graph, weights, self.replay.tokens)
        self._seconds = seconds
        self._by_layers: dict[tuple[int, ...], list[Variant]] = {}
        self._ends = list(self._enumeration.of_ends())
        self._known: dict[tuple[tuple[str, str], ...], None] = {}  # pairs that were found, to be tried first elsewhere
        self._theory = Theory()

    def run(self) -> Diagnosis:
        """Judge every recorded result, then explain those that are wrong."""
        findings, wrong = self.look()
        missing = [name for name in self.graph.nodes if name not in self.replay.recorded and name != "model.selected"]
        found = diagnosis_of(findings, wrong, self.replay.beyond_judging, missing)
        is_partial = any(self.replay.is_partial(name) for name in self.replay.recorded)
        return replace(found, reach=reach(self.replay)) if missing or is_partial else found

    def look(self, among: Collection[str] | None = None) -> tuple[list[Finding], list[Wrong]]:
        """Findings of the recorded results (of `among`), and those that are wrong with what explains them."""
        findings = self.replay.findings(among)
        wrong = [
            Wrong(finding, self.graph.nodes[finding.name].role, self.graph.nodes[finding.name].layer)
            for finding in findings
            if finding.is_wrong
        ]
        for item in wrong:
            item.empty = emptiness(self.replay, item.finding.name)
            if self._follows(item):
                self._theory.add(item.finding.name, item.explanations, follows=True)
                continue
            if item.empty is None:
                item.explanations = self._explain(item.finding)
            elif (
                len(item.finding.segment) == 1
            ):  # one known mistake of this very op may be said, such as a head of zeros
                singles = self._singles(item.finding.segment, item.finding.name)
                found = (self._try(item.finding, (single,)) for single in singles if not single.fitted)
                item.explanations = [explanation for explanation in found if explanation]
            if not item.explanations and self._is_tied_head(item.finding):
                item.hint = tokens_wanted(self.replay)
            self._theory.add(item.finding.name, item.explanations)
        return findings, wrong

    def _follows(self, item: Wrong) -> bool:
        """Whether a result is wrong as those are that it is computed through, of which only some rows are recorded.

        What one mistake that is known makes of them is an explanation, and counts as a place of that mistake.
        """
        finding = item.finding
        through = [name for name in finding.segment[:-1] if name in self.replay.recorded]
        if not through:
            return False
        if not self._theory.unexplained.isdisjoint(through):
            item.follows = True
            return True
        known = [*self._theory.singly(finding.segment)]
        # The same mistake may be made here as well.
        singles = self._singles(finding.segment, finding.name)
        known += [(single,) for single in singles if ((single.bug, single.detail),) in self._theory.known]
        tried = (self._try(finding, variants) for variants in known)
        item.explanations = sorted((e for e in tried if e), key=lambda e: e.ratio)
        if not item.explanations and (everything := self._theory.together()):
            item.follows = self._try(finding, everything) is not None
        return item.follows or bool(item.explanations)

    def _explain(self, finding: Finding) -> list[Explanation]:
        """Everything that reproduces one wrong result, best first."""
        names = finding.segment
        found = [
            explanation
            for variant in self._singles(names, finding.name)
            if (explanation := self._try(finding, (variant,)))
        ]
        if len(names) > 1:
            alone = [variant for e in found for variant in e.variants]
            others = same_by_factor(self.replay, finding, alone) if alone else searched(self.replay, finding)
            found += [e for variant in others if (e := self._try(finding, (variant,)))]
        if not found:
            found = self._pairs(finding)
        if not found and self._is_tied_head(finding):
            found = [e for e in [other_head(self.replay, finding)] if e]
        stated = {self._parameters(e) for e in found if not any(v.fitted for v in e.variants)}
        # A fit that comes out at a mistake of the catalogue is that mistake.
        found = [e for e in found if not any(v.fitted for v in e.variants) or self._parameters(e) not in stated]
        unique = {explanation.key: explanation for explanation in sorted(found, key=lambda e: -e.ratio)}
        explanations = sorted(unique.values(), key=lambda e: e.ratio)
        self._known |= dict.fromkeys(e.key for e in explanations if len(e.variants) == 2)
        return explanations

    def _is_tied_head(self, finding: Finding) -> bool:
        """Whether a result is logits, computed behind the layers, of a model without a head of its own."""
        behind = all(self.graph.nodes[name].layer is None for name in finding.segment)
        return finding.name == "lm_head" and behind and self.graph.config.tie_word_embeddings

    @staticmethod
    def _parameters(explanation: Explanation) -> frozenset[tuple[str, str]]:
        return frozenset((n, key) for v in explanation.variants for n, params in v.edits.items() for key in params)

    def _singles(self, names: tuple[str, ...], name: str) -> Iterator[Variant]:
        """Variants that touch the segment, each once; those of one node fitted too."""
        inside = set(names)
        layers = tuple(sorted({layer for n in names if (layer := self.graph.nodes[n].layer) is not None}))
        seen: set[Any] = set()
        pools = [self._enumerated(layers)]
        if len(layers) > 1:
            pools += [self._enumerated((layer,)) for layer in layers]
        pools.append(self._ends)
        parts: list[Variant] = []  # of mistakes that reach further: they say more than happened here
        for variant in (variant for pool in pools for variant in pool):
            edits = {n: params for n, params in variant.edits.items() if n in inside}
            if edits and len(edits) < len(variant.edits):
                parts.append(replace(variant, edits=edits))
            elif edits and (key := (variant.bug, _frozen(edits))) not in seen:
                seen.add(key)
                yield variant
        for variant in parts:
            if (key := (variant.bug, _frozen(variant.edits))) not in seen:
                seen.add(key)
                yield variant
        node = self.graph.nodes[name]
        recorded = self.replay.recorded[name]
        if recorded.present is None:
            inputs = [self.replay.value(source) for source in node.inputs]
            yield from fits(node, inputs, recorded.values, self.replay.context)

    def _enumerated(self, layers: tuple[int, ...]) -> list[Variant]:
        if layers not in self._by_layers:
            self._by_layers[layers] = list(self._enumeration.of_layers(layers))
        return self._by_layers[layers]

    def _try(self, finding: Finding, variants: tuple[Variant, ...]) -> Explanation | None:
        """Whether these mistakes give what was recorded."""
        edits = merged(variants)
        if edits is None:
            return None
        expected = self.replay.run(finding.segment, edits)
        if not self._is_close(finding, expected, edits):
            return None
        left = self.replay.judge(finding.name, finding.segment, expected, edits)
        gain = FIT_GAIN if any(variant.fitted for variant in variants) else GAIN
        if left.ratio > REPRODUCED or left.ratio * gain > finding.ratio or not self._tells(finding, expected, edits):
            return None
        return Explanation(variants, left.ratio, left.error)

    def _tells(self, finding: Finding, expected: Array, edits: Edits) -> bool:
        """Whether anything wrong is left to reproduce, besides what may have overflowed under these mistakes."""
        beyond = self.replay.overflowed(finding.name, expected, edits)
        if not beyond.any():
            return True
        recorded, right = self.replay.recorded[finding.name], self.replay.run(finding.segment)
        there: Any = True if recorded.present is None else recorded.present
        error = np.where(there & ~beyond, distance(recorded.values, right), 0)
        return bool((error > LIMIT * self.replay.floor(finding.segment, right)).any())

    def _is_close(self, finding: Finding, expected: Array, edits: Edits) -> bool:
        """A cheap look, before the floor of a mistake is measured."""
        recorded = self.replay.recorded[finding.name]
        got = recorded.values
        with np.errstate(all="ignore"):
            if recorded.present is not None:
                got = np.where(recorded.present, got, expected)
            if self.graph.nodes[finding.name].kind == "softmax":
                got = np.where(self.replay.undefined(finding.name, expected), expected, got)
            got = np.where(self.replay.overflowed(finding.name, expected, edits), expected, got)
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
            # Rounding moves even a whole layer by far less than this part of its largest value.
            return bool(error <= max(0.02, 200 * self.replay.unit) * size) if size else bool(error == 0)

    def _pairs(self, finding: Finding) -> list[Explanation]:
        """Two mistakes at once, at one place; stops when the time is up."""
        until = time.monotonic() + self._seconds
        names = finding.segment
        singles = list(self._singles(names, finding.name))
        by_key = {(variant.bug, variant.detail): variant for variant in singles}
        known = (tuple(by_key[part] for part in key) for key in self._known if all(part in by_key for part in key))
        found = [explanation for variants in known if (explanation := self._try(finding, variants))]
        if found:
            return found
        enumerated = [variant for variant in singles if not variant.fitted and not _leaves_zeros(variant)]
        for index, first in enumerate(enumerated):
            for second in enumerated[index + 1 :]:
                if explanation := self._try(finding, (first, second)):
                    found.append(explanation)
            if time.monotonic() > until:
                return found
            if len(names) == 1:
                found += self._with_fit(finding, first)
        if len(names) == 1:
            for first in singles:
                if first.fitted:
                    found += self._with_fit(finding, first)
        return found

    def _with_fit(self, finding: Finding, first: Variant) -> Iterator[Explanation]:
        """An enumerated mistake, and then a fitted one of the node as it stands with the first."""
        node = self.graph.nodes[finding.name]
        changed = node.changed(first.edits[node.name])
        inputs = [self.replay.value(source) for source in changed.inputs]
        for second in fits(changed, inputs, self.replay.recorded[node.name].values, self.replay.context):
            if explanation := self._try(finding, (first, second)):
                yield explanation


def _leaves_zeros(variant: Variant) -> bool:
    """Whether nothing of another mistake would be seen beside it: zeros say nothing of what they were made of."""
    return any(params.get("factor") == 0 for params in variant.edits.values())


def _frozen(edits: Mapping[str, Mapping[str, Any]]) -> Any:
    return tuple(sorted((name, tuple(sorted(params.items(), key=lambda kv: kv[0]))) for name, params in edits.items()))


def other_head(replay: Replay, finding: Finding) -> Explanation | None:
    """Logits as some linear map of the final hidden state, where no weight of the model gives them."""
    found = fitted_head(replay, finding)
    if found is None:
        return None
    ratio, error, num_fitted = found
    if ratio > REPRODUCED or not error * FIT_GAIN < np.abs(replay.recorded["lm_head"].values).max():
        return None
    detail = (
        f"a linear map of the final norm that is none of the model's weights ({num_fitted} rows fitted, rest tested)"
    )
    return Explanation((Variant("tie-ignored", detail, {"lm_head": {}}, fitted=True),), ratio, error)
