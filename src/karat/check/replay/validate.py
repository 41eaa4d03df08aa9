"""What a trace lacks: names that are not those of the model, shapes, and what the diagnosis can do with the rest."""

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from karat.check.model.graph import Graph
from karat.check.model.weights import CheckpointWeights
from karat.check.replay.gathering import gathered, is_part
from karat.check.replay.replay import Replay
from karat.check.replay.resolution import reach
from karat.check.trace.format import Trace

# Beside the graph's nodes.
KNOWN_EXTRAS = ("model.rotary_emb.inv_freq", "model.rotary_emb.cos", "model.rotary_emb.sin")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of a name that is a number
_LIKE = 0.6  # of difflib's ratio: a slip or two


@dataclass(frozen=True, slots=True)
class Misnamed:
    """A name that no result has and that looks as if one was meant: which (None: of a layer that is not there), why."""

    name: str
    meant: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Validation:
    """misnamed: names that look like those of results. unknown: others. missing: results without an array.

    reach says in words how exactly a bug could be located, layer by layer.
    """

    num_arrays: int
    misnamed: Sequence[Misnamed]
    unknown: Sequence[str]
    missing: Sequence[str]
    reach: str


def validate(graph: Graph, weights: CheckpointWeights, trace: Trace) -> Validation:
    """Check names, shapes and description. Raises TraceError for what cannot be used at all."""
    whole, _ = gathered(graph, trace)
    misnamed, unknown = misnamed_of(graph, whole)
    missing = [name for name, node in graph.nodes.items() if name not in whole.arrays and node.kind != "select"]
    return Validation(len(trace.arrays), misnamed, unknown, missing, reach(Replay(graph, weights, whole)))


def misnamed_of(graph: Graph, trace: Trace) -> tuple[list[Misnamed], list[str]]:
    """Names of a trace of the whole model that no result has: those that look like one, and others.

    Keys of `rows` and `heads` are names, too.
    """
    known = {*graph.nodes, *KNOWN_EXTRAS}
    used = dict.fromkeys([*trace.arrays, *trace.info.rows, *trace.info.heads])
    misnamed, unknown = [], []
    for name in used:
        if name not in known and not is_part(name):
            found = _meant(graph, name, known, known - {*trace.arrays})
            misnamed += [found] if found else []
            unknown += [] if found else [name]
    return misnamed, unknown


def _meant(graph: Graph, name: str, known: Collection[str], free: Collection[str]) -> Misnamed | None:
    """The result that a name was probably meant for: one that the trace lacks, or else any."""
    parts = sorted(re.split(r"[._/]", name))
    for candidates in (free, known):
        if same := [other for other in candidates if sorted(re.split(r"[._/]", other)) == parts]:
            return Misnamed(name, min(same), "its parts are in another order")
    number = _NUMBER.search(name)
    if number is None:
        near = _nearest(name, [n for n in known if not _NUMBER.search(n)], free)
        return Misnamed(name, near, "it is spelt otherwise") if near else None
    layer, count = int(number[0]), graph.config.num_layers
    right = {n: _role(n) for n in known if (found := _NUMBER.search(n)) and int(found[0]) == layer % count}
    role = _role(name)
    if layer >= count:
        if role in right.values() or difflib.get_close_matches(role, right.values(), 1, _LIKE):
            return Misnamed(name, None, f"the model has layers 0 to {count - 1}")
        return None
    if near := _nearest(role, list(right.values()), {right[n] for n in free if n in right}):
        meant = next(n for n, other in right.items() if other == near)
        return Misnamed(name, meant, "it is spelt otherwise")
    return None


def _role(name: str) -> str:
    """What follows the number of the layer."""
    return _NUMBER.split(name, 1)[-1].lstrip(".")


def _nearest(name: str, known: Collection[str], free: Collection[str]) -> str | None:
    """The likest of these names, one that is free before one that is not; None if none is alike."""
    for candidates in ([n for n in known if n in free], list(known)):
        if name in candidates:
            return name
        if near := difflib.get_close_matches(name, candidates, 1, _LIKE):
            return near[0]
    return None
