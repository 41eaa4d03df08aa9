"""Naming a bug: an op whose result is not the right one of its own inputs is run again with every known mistake.

Every recorded result is judged first, which takes one pass. Then the first wrong one is searched for mistakes
(karat.check.diagnosis.explain). Where results are computed over several ops, the explanation of one is tried first at
the next. Before any mistake, what a trace leaves out is tried: roundings that an engine does without stating them
(karat.check.diagnosis.assumed).
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from karat.check.diagnosis.assumed import Assumed, assumptions, explains, info_with, is_throughout
from karat.check.diagnosis.below_floor import below_floor
from karat.check.diagnosis.budget import SearchBudget
from karat.check.diagnosis.disagreement import RankTraces
from karat.check.diagnosis.explain import EVERYTHING, Explainer
from karat.check.diagnosis.fitted_head import tokens_wanted
from karat.check.diagnosis.known_mistakes import KnownMistakes
from karat.check.diagnosis.parted import degrees
from karat.check.diagnosis.stated import other_cache
from karat.check.diagnosis.verdict import Diagnosis, Wrong, diagnosis_of
from karat.check.diagnosis.wording import located
from karat.check.mistakes.enumerate import Enumeration
from karat.check.model.graph import Graph
from karat.check.model.weights import CheckpointWeights
from karat.check.replay.degenerate import emptiness
from karat.check.replay.finding import Finding
from karat.check.replay.pattern import pattern_of
from karat.check.replay.replay import Replay
from karat.check.replay.resolution import resolution
from karat.check.trace.format import Trace


class Diagnoser:
    """The diagnosis of one trace beside its model.

    ranks     the ranks that the trace was joined from, if they have different numbers
    seconds   bounds each search for two mistakes at one place
    budget    seconds for all searches together; None: no bound
    progress  is called with what is being done, in a few words
    say       is called with what is known before the diagnosis is complete
    """

    def __init__(
        self,
        graph: Graph,
        weights: CheckpointWeights,
        trace: Trace,
        *,
        ranks: RankTraces | None = None,
        seed: int = 0,
        seconds: float = 20.0,
        budget: float | None = None,
        progress: Callable[[str], None] = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.graph = graph
        self.replay = Replay(graph, weights, trace, seed=seed)
        self._weights, self._seed, self._seconds, self._ranks = weights, seed, seconds, ranks
        self._budget, self._progress, self._say = SearchBudget(budget), progress, say
        self._enumeration = Enumeration(graph, weights, self.replay.tokens, degrees(self.replay))
        self._known = KnownMistakes()
        self._explainer = self._explainer_of(self.replay)

    def run(self) -> Diagnosis:
        """Judge every recorded result, then explain those that are wrong."""
        findings, assumed, guess = self._supposed(self._judged())
        wrong = self._explained(findings)
        if guess is not None and not any(item.explanations for item in wrong):
            assumed, findings, wrong = guess, self._under(guess), []
        missing = [name for name in self.graph.nodes if name not in self.replay.recorded and name != "model.selected"]
        found = diagnosis_of(findings, wrong, self.replay.beyond_judging, missing)
        by_name = {item.finding.name: item for item in wrong}
        named = [replace(n, hidden=below_floor(n, by_name, self.replay, self._explainer)) for n in found.named]
        is_partial = any(self.replay.is_partial(name) for name in self.replay.recorded)
        return replace(
            found, named=named, assumed=assumed, resolution=resolution(self.replay) if missing or is_partial else ""
        )

    def look(self, among: Collection[str] | None = None) -> tuple[list[Finding], list[Wrong]]:
        """Findings of the recorded results (of `among`), and those that are wrong with what explains them."""
        findings = self.replay.findings(among)
        return findings, self._explained(findings)

    def _judged(self) -> list[Finding]:
        """A finding for each recorded result; the first wrong one is said at once."""
        findings: list[Finding] = []
        num_wrong = 0
        for finding in self.replay.judged():
            findings.append(finding)
            layer = self.graph.nodes[finding.name].layer
            self._progress(
                f"{finding.name}: judged"
                if layer is None
                else f"layer {layer + 1} of {self.graph.config.num_layers}: judged"
            )
            num_wrong += finding.is_wrong
            if finding.is_wrong and num_wrong == 1:
                self._say(located(finding, self.graph))
        return findings

    def _supposed(self, findings: list[Finding]) -> tuple[list[Finding], Assumed | None, Assumed | None]:
        """Findings under roundings that the trace does not state; those roundings; and roundings that may explain the
        rest if no mistake does."""
        taken, cache = None, None
        for assumed in assumptions(self.replay):
            if assumed.activations is None and self._explains(assumed, findings):
                findings, taken, cache = self._under(assumed), assumed, assumed.kv_dtype
                break
        for assumed in assumptions(self.replay):
            if assumed.activations is not None and self._explains(assumed, findings):
                whole = replace(assumed, kv_dtype=assumed.kv_dtype or cache)
                if is_throughout(self.replay, findings):
                    return self._under(whole), whole, None
                self._say(f"first guess: {whole.text()}")
                return findings, taken, whole
        return *self._beside_cache(findings, taken), None

    def _beside_cache(self, findings: list[Finding], taken: Assumed | None) -> tuple[list[Finding], Assumed | None]:
        """The same, if a mistake and a cache that is not stated explain the first wrong result together."""
        first = next((f for f in findings if f.is_wrong and len(f.segment) > 1), None)
        through = set() if first is None else {self.graph.nodes[name].kind for name in first.segment}
        caches = [assumed for assumed in assumptions(self.replay) if assumed.activations is None]
        if first is None or through.isdisjoint(("scores", "mix")) or not caches:
            return findings, taken
        if self._explainer.alone_or_by_numbers(first):
            return findings, taken
        replay = self._replay_under(caches[0])
        (again,) = replay.findings((first.name,))
        found = sorted(self._explainer_of(replay).alone_or_by_numbers(again), key=lambda e: e.ratio)
        if not found:
            return findings, taken
        self._known.add(first.name, found)
        return self._under(caches[0], alone=False), caches[0]

    def _explains(self, assumed: Assumed, findings: list[Finding]) -> bool:
        if not any(finding.is_wrong for finding in findings):
            return False
        self._progress(f"tried: {assumed.what}")
        return explains(self._replay_under(assumed), assumed, findings)

    def _under(self, assumed: Assumed, *, alone: bool = True) -> list[Finding]:
        """Take `assumed` for granted from now on; the findings under it."""
        self.replay = self._replay_under(assumed)
        self._explainer = self._explainer_of(self.replay)
        self._say(assumed.text(alone=alone))
        return self._judged()

    def _replay_under(self, assumed: Assumed) -> Replay:
        trace = self.replay.trace
        stated = replace(trace, info=info_with(trace.info, assumed))
        return Replay(self.graph, self._weights, stated, seed=self._seed)

    def _explainer_of(self, replay: Replay) -> Explainer:
        return Explainer(
            replay,
            self._enumeration,
            self._known,
            seconds=self._seconds,
            budget=self._budget,
            progress=self._progress,
        )

    def _explained(self, findings: Collection[Finding]) -> list[Wrong]:
        """The wrong results with what explains them."""
        nodes = self.graph.nodes
        wrong = [
            Wrong(finding, nodes[finding.name].role, nodes[finding.name].layer)
            for finding in findings
            if finding.is_wrong
        ]
        # What is left unexplained decides what follows from it.
        one_by_one = any(name in self.replay.recorded for item in wrong for name in item.finding.segment[:-1])
        open_ones = []
        for item in wrong:
            item.empty = emptiness(self.replay, item.finding.name)
            if self._follows(item):
                self._known.add(item.finding.name, item.explanations, follows=True)
            elif item.empty is not None:
                self._explain_empty(item)
                self._known.add(item.finding.name, item.explanations)
            elif one_by_one:
                self._explain([item])
            else:
                open_ones.append(item)
        self._explain(open_ones)
        for item in wrong:
            if not (item.explanations or item.follows):
                item.pattern = pattern_of(self.replay, item.finding.name)
        unexplained = [item for item in wrong if not (item.explanations or item.follows or item.empty)]
        if unexplained and (cache := other_cache(self.replay, self._replay_under, unexplained)):
            for item in unexplained:
                item.hint = cache
        return wrong

    def _explain_empty(self, item: Wrong) -> None:
        """A single known mistake of this op, such as a head of zeros, explains even an empty result."""
        if len(item.finding.segment) == 1:
            singles = self._explainer.singles(item.finding.segment, item.finding.name)
            found = (self._explainer.attempt(item.finding, (single,)) for single in singles if not single.fitted)
            item.explanations = [explanation for explanation in found if explanation]
        if not item.explanations and self._explainer.is_head_alone(item.finding):
            item.hint = tokens_wanted(self.replay)

    def _explain(self, items: Sequence[Wrong]) -> None:
        """Search for what explains these results: what is cheap to try at many of them, before what is dear at one.

        Most bugs are in all layers, so the first places are searched more deeply than the later ones.
        """
        explainer = self._explainer
        not_tried: dict[str, dict[str, None]] = {item.finding.name: {} for item in items}
        tried: dict[str, int] = {}  # how many mistakes were known when they were last tried at a place
        rounds = sorted(
            (cost + math.log2(1 + place), place, effort)
            for place, item in enumerate(items)
            for effort, cost in enumerate(explainer.costs(item.finding))
        )
        for _, place, effort in rounds:
            item, name = items[place], items[place].finding.name
            if item.explanations:
                continue
            # Over several ops a try is slow, so others' mistakes come first; when the time is up they are all.
            known = self._known.known
            if (len(item.finding.segment) > 1 or effort or self._budget.is_spent) and len(known) > tried.get(name, 0):
                self._progress(f"{name}: what explains others is tried")
                item.explanations = explainer.with_known(item.finding, known.values())
                tried[name] = len(known)
            if not item.explanations:
                item.explanations, left = explainer.explain(item.finding, effort)
                not_tried[name] |= dict.fromkeys([left] if left else [])
            if item.explanations:
                self._known.add(name, item.explanations)
        for item in items:
            if not item.explanations:
                left_over = list(not_tried[item.finding.name])
                item.not_tried = EVERYTHING if EVERYTHING in left_over else "; ".join(left_over)
                self._known.add(item.finding.name, [])
                if explainer.is_head_alone(item.finding):
                    item.hint = tokens_wanted(self.replay)

    def _follows(self, item: Wrong) -> bool:
        """Whether a result is wrong because ranks had different inputs, or because it is computed through wrong results
        of which only some rows are recorded.

        If one known mistake gives the result, it is an explanation, and the result is one of the mistake's places.
        """
        finding, attempt = item.finding, self._explainer.attempt
        if self._ranks is not None and self._ranks.explain(finding):
            item.follows = True
            return True
        through = [name for name in finding.segment[:-1] if name in self.replay.recorded]
        if not through:
            return False
        if not self._known.unexplained.isdisjoint(through):
            item.follows = True
            return True
        known = [*self._known.singly(finding.segment)]
        # The same mistake may be made here as well.
        singles = self._explainer.singles(finding.segment, finding.name)
        known += [(single,) for single in singles if (single.key,) in self._known.known]
        tried = (attempt(finding, variants) for variants in known)
        item.explanations = sorted((e for e in tried if e), key=lambda e: e.ratio)
        if not item.explanations and (everything := self._known.together()):
            item.follows = attempt(finding, everything) is not None
        return item.follows or bool(item.explanations)
