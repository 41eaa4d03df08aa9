"""One case of the zoo: a broken engine, traced by hooks, and its diagnosis."""

import copy
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.diagnosis.verdict import Diagnosis
from karat.check.record.hf import record_hf
from karat.check.replay.finding import LIMIT
from karat.check.replay.replay import Replay
from karat.check.trace.format import Trace
from karat.quant import CODINGS, FORMATS
from tools.zoo.caches import FaultyCache
from tools.zoo.faults import Row
from tools.zoo.integers import CutInBlockError, reading_integers
from tools.zoo.models import Subject, draw


@dataclass(frozen=True, slots=True)
class Case:
    """The diagnosis of one bug, or of several at once.

    outcome: right; class (right, among others); wrong (a name that it is not); silent (called wrong, but not by all its
    names); missed (nothing said); unseen (no recorded result moves by ten times its floor, and no wrong name is given).
    moved: the largest move, in multiples of the floor.
    """

    bug: str
    seed: str
    outcome: str
    said: tuple[str, ...]
    unexplained: tuple[str, ...]
    moved: float

    @property
    def counts(self) -> bool:
        """Whether there was anything to observe."""
        return self.outcome != "unseen"


def run_case(
    rows: Iterable[Row], seed: str, *, kind: str = "full", seconds: float = 10.0, activations: str | None = None
) -> Case | None:
    """Break a model in each of these ways and diagnose it; None if it cannot be broken so.

    activations: the width of the integers that its linear layers read; its weights are then in blocks.
    """
    rows = list(rows)
    options: dict[str, Any] = {}
    for row in rows:
        if any(options.get(key, value) != value for key, value in row.draw.items()):
            return None  # they need different models
        options |= row.draw
    if activations is not None:
        options["stored"] = tuple(name for name in options.get("stored", CODINGS) if name in CODINGS)
        sizes = ("hidden_size", "intermediate_size")
        if not options["stored"] or "dtype" in options:
            return None
        if any(options.get("changes", {}).get(name, 256) % 256 for name in sizes):
            options["stored"] = tuple(name for name in options["stored"] if FORMATS[name].block_size == 32)
            if any(options["changes"].get(name, 256) % 32 for name in sizes):
                return None
    subject = draw(seed, **options)

    def record(hf: Any, **more: Any) -> Trace:
        with reading_integers(activations):
            trace = record_hf(hf, subject.steps, **more)
        return trace if activations is None else replace(trace, info=replace(trace.info, activations=activations))

    is_narrow = subject.hf.dtype == torch.float16  # which is the fault: a right run is one in float32
    healthy = record(copy.deepcopy(subject.hf).float() if is_narrow else subject.hf)
    with ExitStack() as stack:
        if not all(row.fault(subject, stack) is not False for row in rows):
            return None
        cache = None
        if caches := [fault for row in rows for fault in row.caches]:
            cache = FaultyCache(subject.rng.choice(caches))
        elif any(row.cached for row in rows):
            cache = DynamicCache(config=subject.hf.config)
        try:
            broken = record(subject.hf, cache=cache)
        except CutInBlockError:
            return None
    seen = reduced(broken, kind)
    moved = overflow(reduced(healthy, kind), seen) if is_narrow else how_far(subject, reduced(healthy, kind), seen)
    diagnosis = Diagnoser(subject.graph, subject.weights, seen, seconds=seconds).run()
    return judged([row.bug for row in rows], seed, diagnosis, moved)


def reduced(trace: Trace, kind: str) -> Trace:
    """The whole trace, layer outputs with embeddings and logits, or logits only."""
    if kind == "full":
        return trace
    if kind == "logits":
        return Trace(trace.info, {"lm_head": trace.arrays["lm_head"]})
    kept = {
        name: array
        for name, array in trace.arrays.items()
        if name in ("model.embed_tokens", "lm_head") or name.removeprefix("model.layers.").isdigit()
    }
    return Trace(trace.info, kept)


def overflow(healthy: Trace, broken: Trace) -> float:
    """Infinite if a result is NaN or infinite that is finite in a run without overflow, masks aside; else 0."""
    for name, array in broken.arrays.items():
        if not name.endswith(".scores") and (np.isfinite(healthy.arrays[name]) & ~np.isfinite(array)).any():
            return np.inf
    return 0.0


def how_far(subject: Subject, healthy: Trace, broken: Trace) -> float:
    """The largest move of a recorded result of the two, in multiples of the healthy run's floor.

    What moved because the results before it did is no move of its own: the errors of all layers before add up in the
    last, each below its floor. So both runs' differences from the right result of their own inputs are compared.
    """
    replay, other = (Replay(subject.graph, subject.weights, trace) for trace in (healthy, broken))
    largest = 0.0
    for name in subject.graph.nodes:
        if name not in replay.recorded or name not in other.recorded:
            continue
        with np.errstate(all="ignore"):
            a, b = replay.recorded[name].values, other.recorded[name].values
            move = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
        if not move.any():
            continue
        if not np.isfinite(move).all():
            return np.inf
        names = replay.segment(name)
        right = replay.run(names)
        with np.errstate(all="ignore"):
            own = np.abs((b - other.run(names)) - (a - right))
            largest = max(largest, float(np.nanmax(own / replay.floor(names, right), where=own > 0, initial=0)))
        if largest > 1e6:
            break
    return largest


def judged(bugs: list[str], seed: str, diagnosis: Diagnosis, moved: float) -> Case:
    said = tuple(" = ".join(" + ".join(sorted(c)) for c in named.classes) for named in diagnosis.named)
    unexplained = tuple(item.finding.name for item in diagnosis.unexplained)
    wanted = set(bugs)
    strange = [named for named in diagnosis.named if not any(c & wanted and c <= wanted for c in named.classes)]
    found = {bug for named in diagnosis.named for c in named.classes if c <= wanted for bug in c}
    if strange:
        outcome = "wrong"
    elif moved < LIMIT and (diagnosis.is_healthy or found == wanted):
        outcome = "unseen"
    elif found == wanted:
        outcome = "right" if all(len(named.classes) == 1 for named in diagnosis.named) else "class"
    elif diagnosis.is_healthy:
        outcome = "missed"
    else:
        outcome = "silent"
    return Case(" + ".join(bugs), seed, outcome, said, unexplained, moved)


if __name__ == "__main__":
    from tools.zoo.faults import ROWS

    wanted = sys.argv[1]
    (row,) = [row for row in ROWS if row.title == wanted]
    print(run_case([row], sys.argv[2], kind=sys.argv[3] if len(sys.argv) > 3 else "full"))
