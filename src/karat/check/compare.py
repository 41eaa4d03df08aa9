"""A trace against the whole right computation: how errors add up, and where they first leave what rounding explains.

Local errors (each op re-run from the recorded inputs) are karat.check.replay's. Here the reference runs freely, from
the token ids on, in float64; beside it the same run in the engine's precision: once in float32, and with every result
moved at random by half a unit in the last place. Their spread is the floor of each row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from karat.check.compute import evaluate
from karat.check.replay import F32, F64, PRECISION, Array, Finding, Replay
from karat.check.trace import Trace
from karat.errors import TraceError

_DRAWS = 2


@dataclass(frozen=True, slots=True)
class Drift:
    """The accumulated error of one result: largest and root mean square, and in multiples of the floor of its row.

    floor is the root mean square of what rounding alone does to it; scale that of the result itself.
    """

    name: str
    largest: float
    rms: float
    floor: float
    ratio: float
    scale: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """local and drift: one entry for each recorded result, in the order of computation."""

    local: Sequence[Finding]
    drift: Sequence[Drift]

    @property
    def first_wrong(self) -> Finding | None:
        """The first op that leaves the floor on its own inputs."""
        return next((finding for finding in self.local if finding.is_wrong), None)


def compare(replay: Replay, reference: Trace | None = None) -> Comparison:
    """Local and accumulated errors of the replay's trace; accumulated ones against `reference` where it has the result.

    Without a reference trace, they are against the float64 run. Results of which only some rows were recorded are
    compared in those.
    """
    local = replay.findings()
    others: dict[str, Array] = {}
    if reference is not None:
        if reference.info.token_ids != replay.trace.info.token_ids:
            raise TraceError(
                f"the reference trace has other token ids ({reference.info.num_tokens} of them, this one "
                f"{replay.trace.info.num_tokens}): record both over the same tokens (karat trace --ids)"
            )
        theirs = Replay(replay.graph, replay.context.weights, reference)
        for name, values in theirs.complete().items():
            node = replay.graph.nodes[name]
            wanted, found = replay.domain(node), theirs.domain(node)
            if np.array_equal(wanted, found):
                others[name] = values
            elif np.isin(wanted, found).all():
                others[name] = values[np.searchsorted(found, wanted)]
    return Comparison(local, _drift(replay, others))


def _drift(replay: Replay, others: Mapping[str, Array]) -> list[Drift]:
    """One pass through the graph with all runs side by side; a value is dropped after its last reader."""
    last_reader = {source: name for name, node in replay.graph.nodes.items() for source in node.inputs}
    runs: list[tuple[str, np.dtype[Any]]] = [("right", F64), *[("noisy", F64)] * _DRAWS]
    if replay.unit == PRECISION["float32"]:
        runs.append(("single", F32))
    values: list[dict[str, Array]] = [{} for _ in runs]
    found = []
    for name, node in replay.graph.nodes.items():
        for (kind, dtype), kept in zip(runs, values, strict=True):
            inputs = [kept[source] for source in node.inputs]
            if kind == "noisy" and node.kind in ("scores", "mix"):
                inputs[1] = replay.as_cached(inputs[1])
            result = evaluate(node, inputs, replay.context, dtype)
            kept[name] = replay.disturbed(node, inputs, result) if kind == "noisy" else result
        right = values[0][name]
        if name in replay.recorded:
            recorded = replay.recorded[name]
            present = np.ones(1, bool) if recorded.present is None else recorded.present
            target = others.get(name, right)
            with np.errstate(all="ignore"):
                spread = np.max([np.abs(kept[name].astype(F64) - right) for kept in values[1:]], axis=0)
                error = np.abs(recorded.values - target)
                error = np.where((recorded.values == target) | ~present, 0, error)
                spread = np.where(np.isfinite(spread), spread, 0).max(axis=-1, keepdims=True)
                spread = np.maximum(
                    spread, replay.unit * np.abs(np.where(np.isfinite(right), right, 0)).max(-1, keepdims=True)
                )
                ratio = np.where(error == 0, 0, error / spread)
                finite = right[np.isfinite(right)]
            found.append(Drift(
                name, float(np.nanmax(error, initial=0)), _rms(error), _rms(np.broadcast_to(spread, error.shape)),
                float(np.nan_to_num(ratio, nan=np.inf).max()), _rms(finite),
            ))  # fmt: skip
        for kept in values:
            for source in node.inputs:
                if last_reader[source] == name:
                    kept.pop(source, None)
    return found


def _rms(x: Array) -> float:
    finite = x[np.isfinite(x)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
