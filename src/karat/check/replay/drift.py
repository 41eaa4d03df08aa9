"""A trace against the whole right computation: accumulated errors, and the first one that rounding does not explain.

karat.check.replay.replay finds local errors: each op is run again from its recorded inputs. Here the reference runs
freely, from the token ids on, in float64. Beside it the same run is made in the engine's precision: once in float32,
and with every result moved at random by half a unit in the last place. Their spread is the floor of each row, widened
where attention is uncertain (karat.check.replay.uncertain).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.model.evaluate import evaluate
from karat.check.replay import routing
from karat.check.replay.align import Recorded
from karat.check.replay.distances import distance
from karat.check.replay.finding import F32, F64, Array, Finding
from karat.check.replay.noise import PRECISION
from karat.check.replay.replay import MANY, Replay
from karat.check.replay.uncertain import UncertainAttention
from karat.check.trace.format import LazyArrays, Trace, TraceInfo
from karat.config import FloatName
from karat.errors import TraceError

# How far accumulated rounding has been seen to go, in multiples of one noisy run: both sides stray, by chance.
DRIFT_LIMIT = 100.0
_DRAWS = 2
# Of a row of fewer numbers (the gate of a shared expert, decays) all draws may be small by chance: its spread is at
# least the root mean square of all rows'.
_FEW = 8


@dataclass(frozen=True, slots=True)
class Drift:
    """The accumulated error of one result.

    largest, rms  the largest error, and the root mean square
    floor         the root mean square of what rounding alone does to the result
    ratio         the largest error in multiples of the floor of its row
    scale         the root mean square of the result
    """

    name: str
    largest: float
    rms: float
    floor: float
    ratio: float
    scale: float


@dataclass(frozen=True, slots=True)
class RunComparison:
    """local and drift: one entry for each recorded result, in the order of computation."""

    local: Sequence[Finding]
    drift: Sequence[Drift]


def compare(replay: Replay) -> RunComparison:
    """Local errors of the replay's trace, and accumulated errors against the float64 run, in the recorded rows."""
    local = replay.findings()
    free = FreeRun(replay)
    found = []
    for name in replay.graph.nodes:
        run = free.advance(replay, name)
        if name in replay.recorded:
            found.append(drift_of(replay, run, run.right))
    return RunComparison(local, found)


def aligned(replay: Replay, reference: Trace) -> Mapping[str, Array]:
    """The results of another trace of the same tokens, in the shapes and rows of the replay's results.

    A result is left out if it lacks rows that the replay's trace has. Raises TraceError for other tokens.
    """
    if reference.info.token_ids != replay.trace.info.token_ids:
        raise TraceError(
            f"the reference trace has other token ids ({reference.info.num_tokens} of them, this one "
            f"{replay.trace.info.num_tokens}): record both over the same tokens (karat trace --ids)"
        )
    theirs = Replay(replay.graph, replay.context.weights, reference)
    nodes = replay.graph.nodes

    def rows_of(name: str) -> Array:
        values, wanted, found = theirs.recorded[name].values, replay.domain(nodes[name]), theirs.domain(nodes[name])
        return values if np.array_equal(wanted, found) else values[np.searchsorted(found, wanted)]

    def covers(name: str) -> bool:
        ours, have = replay.recorded.mask(name), theirs.recorded.mask(name)
        if ours is None or have is None:
            return theirs.recorded.is_whole(name)
        return bool((have | ~ours).all())

    names = [
        name
        for name in theirs.recorded
        if covers(name) and np.isin(replay.domain(nodes[name]), theirs.domain(nodes[name])).all()
    ]
    return LazyArrays(names, rows_of)


def coarser(ours: TraceInfo, theirs: TraceInfo) -> TraceInfo:
    """`ours`, with the types and activations of either description that round more."""

    def cache(info: TraceInfo) -> FloatName:
        return info.kv_dtype or info.dtype

    dtype = max(ours.dtype, theirs.dtype, key=PRECISION.__getitem__)
    kv_dtype = max(cache(ours), cache(theirs), key=PRECISION.__getitem__)
    kept = ours.kv_dtype if kv_dtype == cache(ours) else kv_dtype
    activations = max(ours.activations, theirs.activations, key=_COARSENESS.index)
    return replace(ours, dtype=dtype, kv_dtype=kept, activations=activations)


_COARSENESS = (None, "none", "int24", "int16", "int8", "ggml")


@dataclass(frozen=True, slots=True, eq=False)
class Free:
    """A result of the runs from the token ids on: right, in float64; spread: how far rounding moves a row [..., 1]."""

    name: str
    right: Array
    spread: Array


@dataclass(slots=True)
class Choices:
    """How many choices of experts, a token in a layer each, were compared, and how many of them rounding decided
    otherwise, by result."""

    num: int = 0
    close: dict[str, int] = field(default_factory=dict)

    def see(self, name: str, differs: NDArray[np.bool_], close: NDArray[np.bool_]) -> None:
        """The choices of a result [rows]: which differ, and which of these rounding decides."""
        self.num += len(differs)
        if (count := int((differs & close).sum())) > 0:
            self.close[name] = self.close.get(name, 0) + count

    @property
    def text(self) -> str | None:
        """In a sentence; None if no choice differs."""
        if not self.close:
            return None
        count, first = sum(self.close.values()), next(iter(self.close))
        return f"numerics (a close choice): {count} of {self.num} choices of experts, the first in {first}"


class FreeRun:
    """One pass through the graph with all runs side by side; a value is dropped after its last reader."""

    def __init__(self, replay: Replay) -> None:
        nodes = replay.graph.nodes
        self._last_reader = {source: name for name, node in nodes.items() for source in node.inputs}
        self._runs: list[tuple[str, np.dtype[Any]]] = [("right", F64), *[("noisy", F64)] * _DRAWS]
        if replay.tokens.num_tokens >= MANY:
            self._runs[1:] = [("noisy", replay.noisy_dtype)]
        elif replay.unit == PRECISION["float32"]:
            self._runs.append(("single", F32))
        self._values: list[dict[str, Array]] = [{} for _ in self._runs]
        self._spreads: dict[str, Array] = {}
        self._routed: tuple[Array, Array] | None = None  # the last marks of experts, and how far apart two are one
        self._attention = UncertainAttention(replay.tokens.num_tokens)
        self.choices = Choices()  # of the engine, compared with the right ones

    def advance(self, replay: Replay, name: str) -> Free:
        """Compute the next node in all runs, with the noise of `replay`, which has this graph and these tokens."""
        node = replay.graph.nodes[name]
        right: Array = np.zeros(0)
        spread: Array | None = None
        for (kind, dtype), kept in zip(self._runs, self._values, strict=True):
            inputs = [kept[source] for source in node.inputs]
            if kind == "noisy":
                inputs = replay.noise.as_rounded(node, inputs)
                if node.kind in ("scores", "mix"):
                    inputs[1] = replay.noise.as_cached(inputs[1])
            result = evaluate(node, inputs, replay.rounded if kind == "noisy" else replay.exact, dtype)
            if node.kind == "chosen_ids" and kind == "right":
                rule, spread_of_logits = node.params["routing"], DRIFT_LIMIT * self._spreads[node.inputs[0]]
                marks = routing.marks_of(inputs[0], rule, replay.context.weights)
                self._routed = marks, routing.floor_of(marks, rule, replay.unit, spread_of_logits)
            if node.kind == "chosen_ids" and (recorded := replay.recorded.get(name)) is not None:
                result = right if kind != "right" else self._chosen(name, recorded, result)
            kept[name] = replay.noise.disturbed(node, inputs, result) if kind == "noisy" else result
            if kind == "right":
                right = result
                continue
            with np.errstate(all="ignore"):
                moved = np.subtract(kept[name], right, dtype=F64)
                moved = np.fmax.reduce(np.abs(moved, out=moved), axis=-1, keepdims=True)
                moved = np.where(np.isfinite(moved), moved, 0)
            spread = moved if spread is None else np.maximum(spread, moved)
        assert spread is not None
        spread = self._attention.widened(node, spread, right, self._values[0], replay.exact.logit_rows)
        self._spreads[name] = spread
        for kept in (*self._values, self._spreads):
            for source in {*node.inputs, name}:
                if self._last_reader.get(source, name) == name:
                    kept.pop(source, None)
        sizes = np.abs(right if node.kind != "scores" else np.where(np.isfinite(right), right, 0))
        sizes = np.nan_to_num(sizes.max(-1, keepdims=True), nan=0, posinf=0)
        spread = np.maximum(spread, replay.unit * sizes)
        if right.shape[-1] < _FEW and node.kind not in ("scores", "softmax"):
            spread = np.maximum(spread, np.sqrt(np.mean(np.square(spread), axis=0, keepdims=True)))
        return Free(name, right, spread)

    def _chosen(self, name: str, recorded: Recorded, right: Array) -> Array:
        """The experts of the right run: where rounding decides between some, those that the engine chose."""
        close = self.is_close(recorded.values, right)
        if recorded.present is not None:
            close &= recorded.present
        self.choices.see(name, _others(recorded.values, right), close[:, 0])
        return np.where(close, recorded.values, right)

    def is_close(self, ids: Array, other: Array) -> NDArray[np.bool_]:
        """Of the last choice of experts: the rows [rows, 1] in which rounding decides between these and the others."""
        assert self._routed is not None, "experts are chosen by marks"
        return routing.is_close(ids, other, *self._routed)


class Apart:
    """Where two engines part because rounding made them choose other experts: `first` is that token, None if none is.

    From it on, their later results are of other computations, and not compared.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.choices = Choices()  # of both engines, in every row that they have

    def shared(
        self, replay: Replay, free: FreeRun, name: str, theirs: Array, rows: NDArray[np.bool_] | None
    ) -> NDArray[np.bool_] | None:
        """Of `rows` of a result (None: all) those that are compared. `free` has just computed it."""
        node = replay.graph.nodes[name]
        tokens = replay.domain(node)
        if node.kind == "chosen_ids":
            ours = replay.recorded[name].values
            close = free.is_close(theirs, ours)[:, 0]
            self.choices.see(name, _others(ours, theirs), close)
            parted = (ours != theirs).any(axis=-1) & close
            if parted.any():
                here = int(tokens[parted].min())
                self.first = here if self.first is None else min(self.first, here)
        if self.first is None:
            return rows
        before: NDArray[np.bool_] = tokens < self.first
        return before if rows is None else before & rows


def _others(ids: Array, than: Array) -> NDArray[np.bool_]:
    """The rows [rows] of chosen experts that have another one, in whatever order."""
    others: NDArray[np.bool_] = (np.sort(ids, axis=-1) != np.sort(than, axis=-1)).any(axis=-1)
    return others


def drift_of(replay: Replay, run: Free, target: Array, rows: NDArray[np.bool_] | None = None) -> Drift:
    """The distance of a recorded result from `target` (the float64 run's, or another engine's), against the spread.

    rows: the tokens of the result that are compared, at least one; None: all.
    """
    recorded = replay.recorded[run.name]
    error = distance(recorded.values, target)
    if recorded.present is not None:
        error[np.broadcast_to(~recorded.present, error.shape)] = 0
    spread, right = run.spread, run.right
    if rows is not None:
        axis = 1 if replay.graph.nodes[run.name].kind in ("scores", "softmax") else 0
        error, spread, right = (np.compress(rows, x, axis=axis) for x in (error, spread, right))
    largest, rms = float(error.max(initial=0)), _rms(error)
    with np.errstate(all="ignore"):
        ratio = np.divide(error, spread, out=error)
    ratio[np.isnan(ratio)] = 0
    return Drift(
        run.name,
        largest,
        rms,
        _rms(spread),
        float(ratio.max(initial=0)),
        _rms(right),
    )


def _rms(x: Array) -> float:
    """The root mean square of the finite values."""
    with np.errstate(all="ignore"):
        square = float(np.vdot(x, x))
    if np.isfinite(square):
        return float(np.sqrt(square / max(1, x.size)))
    finite = x[np.isfinite(x)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
