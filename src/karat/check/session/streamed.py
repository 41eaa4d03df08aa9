"""A run judged part by part while it is computed, beside the right computation and other engines' runs of its text.

Only figures of a layer are kept. Memory holds one layer's weights, its results, and the float64 runs that continue from
it. So a check takes the memory of the model's largest part.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.diagnosis.peers import Known, known_difference
from karat.check.diagnosis.signs import HealthSigns
from karat.check.diagnosis.verdict import Diagnosis, Wrong, diagnosis_of
from karat.check.model.checked import CheckedModel
from karat.check.record.layerwise import LayerwisePart, LayerwiseRun, parts_of
from karat.check.replay.drift import Apart, Choices, Drift, FreeRun, aligned, coarser, drift_of
from karat.check.replay.finding import Finding
from karat.check.replay.forced import Local, local_errors
from karat.check.replay.noise import PRECISION
from karat.check.replay.replay import Replay
from karat.check.trace.format import Array, Trace, TraceInfo

_MAPS = 4  # attention maps that are kept for the report
_MAP_TOKENS = 96


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMap:
    """Weights of one head [tokens, keys], and why they are shown."""

    name: str
    head: int
    why: str
    weights: Array


@dataclass(slots=True, eq=False)
class Results:
    """The figures after the last part.

    drift          accumulated errors, against "float64" and against each other engine by name
    forced         Karat's ops, one by one, on the inputs of another engine, beside that engine's results
    logits         Karat's ("ours"), the float64 run's, and those of other engines; rows as in info.rows
    spread         how far rounding moves each row of logits [rows, 1], from the token ids on
    spread_beside  the same for engines that round more than Karat
    known          known differences of other engines, which are compared up to the first token concerned
    choices        Karat's choices of experts beside those of the float64 run
    """

    info: TraceInfo
    health: HealthSigns
    findings: list[Finding] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    beyond_judging: list[str] = field(default_factory=list)
    drift: dict[str, list[Drift]] = field(default_factory=dict)
    forced: dict[str, list[Local]] = field(default_factory=dict)
    logits: dict[str, Array] = field(default_factory=dict)
    spread: Array = field(default_factory=lambda: np.zeros((0, 1)))
    spread_beside: dict[str, Array] = field(default_factory=dict)
    maps: list[AttentionMap] = field(default_factory=list)
    known: dict[str, Known] = field(default_factory=dict)
    apart: dict[str, Apart] = field(default_factory=dict)
    choices: Choices = field(default_factory=Choices)

    @property
    def diagnosis(self) -> Diagnosis:
        return diagnosis_of(self.findings, self.wrong, self.beyond_judging, ())


class Streamed:
    """Judges the parts of `run`, one with each call of `advance`. `layers`: the layers to judge (None: all)."""

    def __init__(
        self,
        model: CheckedModel,
        run: LayerwiseRun,
        *,
        layers: Collection[int] | None = None,
        progress: Callable[[str], None] = lambda _: None,
        seed: int = 0,
        seconds: float = 20.0,
    ) -> None:
        self._model, self._seed, self._seconds = model, seed, seconds
        self._layers, self._progress = layers, progress
        self._weights = model.weights(run.info.dtype)
        parts = parts_of(model.graph)
        self._run, self._parts = run, enumerate(zip(parts, run.parts(), strict=True))
        nodes = model.graph.nodes
        self._last_read = {
            read: number for number, part in enumerate(parts) for name in part.names for read in nodes[name].inputs
        }
        self._carried: dict[str, Array] = {}  # results that later parts read
        self._lent: dict[str, Array] = {}  # of the engine whose inputs our ops are fed: what later parts read
        self._free: FreeRun | None = None
        self._free_beside: dict[str, FreeRun] = {}
        self.results = Results(run.info, HealthSigns(model.graph, run.info, PRECISION[run.info.dtype]))

    def advance(
        self, others: Mapping[str, tuple[TraceInfo, Mapping[str, Array]]] | None = None, *, forced: str | None = None
    ) -> bool:
        """Compute and judge the next part, beside the results of `others`; False if there is no next part.

        forced: the name of the engine among `others` on whose inputs Karat's ops run once more; it is given for every
        part, from the first on. Raises TraceError if another engine's run has other tokens or shapes.
        """
        following = next(self._parts, None)
        if following is None:
            return False
        number, (part, arrays) = following
        if part.layer is not None:
            self._progress(f"layer {part.layer + 1} of {self._model.config.num_layers}")
        chosen = part.layer is None or self._layers is None or part.layer in self._layers
        results, info = self.results, self.results.info
        diagnoser = Diagnoser(
            self._model.graph,
            self._weights,
            Trace(info, {**self._carried, **arrays}),
            seed=self._seed,
            seconds=self._seconds,
        )
        replay = diagnoser.replay
        results.health.look(arrays)
        findings, wrong = diagnoser.look(part.names if chosen else ())
        results.findings += findings
        results.wrong += wrong
        results.beyond_judging += replay.beyond_judging
        self._keep_maps(arrays, findings)
        if self._free is None:
            self._free = FreeRun(replay)
            results.choices = self._free.choices
        theirs = {
            other: aligned(replay, Trace(their_info, {n: found[n] for n in part.names if n in found}))
            for other, (their_info, found) in (others or {}).items()
        }
        for other, (their_info, _) in (others or {}).items():
            if found_known := known_difference(their_info.executor, self._model.config, info.num_tokens):
                results.known[other] = found_known
        noisier = {other: self._noisier(replay, their_info) for other, (their_info, _) in (others or {}).items()}
        for other, noisy in noisier.items():
            if noisy is not None and other not in self._free_beside:
                self._free_beside[other] = FreeRun(noisy)
        if chosen and forced is not None and forced in (others or {}):
            self._force(replay, part, forced, *(others or {})[forced], same_type=noisier[forced] is None)
        for name in part.names:
            free = self._free.advance(replay, name)
            beside = {
                other: free if noisy is None else self._free_beside[other].advance(noisy, name)
                for other, noisy in noisier.items()
            }
            if name not in replay.recorded or not chosen:
                continue
            results.drift.setdefault("float64", []).append(drift_of(replay, free, free.right))
            for other, found in theirs.items():
                rows = results.known[other].shared(replay, name) if other in results.known else None
                if name in found:
                    run = self._free if noisier[other] is None else self._free_beside[other]
                    rows = results.apart.setdefault(other, Apart()).shared(replay, run, name, found[name], rows)
                if name in found and (rows is None or rows.any()):
                    drift = drift_of(replay, beside[other], found[name], rows)
                    results.drift.setdefault(other, []).append(drift)
            if name == "lm_head":
                results.logits, results.spread = {"ours": arrays[name], "float64": free.right}, free.spread
                narrow = arrays[name].dtype
                results.logits |= {o: found[name].astype(narrow) for o, found in theirs.items() if name in found}
                results.spread_beside = {o: beside[o].spread for o, noisy in noisier.items() if noisy is not None}
        known = {**self._carried, **arrays}
        self._carried = {name: known[name] for name in known if self._last_read.get(name, -1) > number}
        if forced is not None:
            found = (others or {})[forced][1]
            given = {**self._lent, **{name: found[name] for name in part.names if name in found}}
            self._lent = {name: given[name] for name in given if self._last_read.get(name, -1) > number}
        return True

    def _force(
        self,
        replay: Replay,
        part: LayerwisePart,
        other: str,
        info: TraceInfo,
        found: Mapping[str, Array],
        *,
        same_type: bool,
    ) -> None:
        """Karat's ops of this part on the inputs of the other engine."""
        nodes = self._model.graph.nodes
        before = next((self._lent.get(name) for name in nodes[part.names[0]].inputs), None)
        if before is None and self._carried:
            return  # it has not recorded the result of the part before
        made = self._run.forced(found, before)
        theirs = Trace(info, {name: array for name, array in found.items() if name in nodes})
        self.results.forced.setdefault(other, []).extend(
            local_errors(replay, theirs, self._lent, made, same_type=same_type)
        )

    def _noisier(self, replay: Replay, theirs: TraceInfo) -> Replay | None:
        """This part with the noise floor of an engine that rounds more than Karat; None if it does not."""
        info = coarser(replay.trace.info, theirs)
        if info == replay.trace.info:
            return None
        return Replay(replay.graph, replay.context.weights, Trace(info, replay.trace.arrays), seed=self._seed)

    def _keep_maps(self, arrays: Mapping[str, Array], findings: Sequence[Finding]) -> None:
        """Keep maps of this layer's flagged heads."""
        kept = self.results.maps
        chosen: list[tuple[str, int, str]] = [
            (name, head, "looks at one position only")
            for name, heads in self.results.health.flagged.items()
            if name in arrays
            for head in heads
        ]
        for finding in findings:
            kind = self._model.graph.nodes[finding.name].kind
            if finding.is_wrong and kind in ("scores", "softmax") and finding.where:
                name = finding.name.rpartition(".")[0] + ".weights"
                chosen.append((name, finding.where[0], f"{finding.name.rpartition('.')[2]} are wrong"))
        for name, head, why in chosen[: _MAPS - len(kept)]:
            weights: Any = np.array(arrays[name][head, :_MAP_TOKENS, :_MAP_TOKENS])
            kept.append(AttentionMap(name, head, why, weights))
