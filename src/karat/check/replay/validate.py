"""The validation of a trace: names that no result of the model has, shapes, missing results, and the resolution."""

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from karat.check.model.graph import Graph
from karat.check.model.weights import CheckpointWeights
from karat.check.replay.gathering import gathered, is_part
from karat.check.replay.replay import Replay
from karat.check.replay.resolution import resolution
from karat.check.trace.format import Trace

# Names that a trace may have beside those of the graph's nodes.
KNOWN_EXTRAS = ("model.rotary_emb.inv_freq", "model.rotary_emb.cos", "model.rotary_emb.sin")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of a name that is a number
_LIKE = 0.6  # of difflib's ratio: a slip or two


@dataclass(frozen=True, slots=True)
class Misnamed:
    """A name that resembles a result's. meant: that result; None: it is of a layer that the model does not have."""

    name: str
    meant: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Validation:
    """The validation of a trace.

    misnamed    names that resemble a result's
    unknown     other names that no result has
    missing     results without an array
    resolution  how exactly a bug could be located, layer by layer, in words
    """

    num_arrays: int
    misnamed: Sequence[Misnamed]
    unknown: Sequence[str]
    missing: Sequence[str]
    resolution: str


def validate(graph: Graph, weights: CheckpointWeights, trace: Trace) -> Validation:
    """Check names, shapes and description. Raises TraceError for a trace that cannot be used at all."""
    whole, _ = gathered(graph, trace)
    misnamed, unknown = misnamed_of(graph, whole)
    missing = [name for name, node in graph.nodes.items() if name not in whole.arrays and node.kind != "select"]
    return Validation(len(trace.arrays), misnamed, unknown, missing, resolution(Replay(graph, weights, whole)))


def misnamed_of(graph: Graph, trace: Trace) -> tuple[list[Misnamed], list[str]]:
    """The names of a trace (ranks joined) that no result has: those that resemble a result's, and others.

    Keys of `rows` and `heads` count as names; of a rank's result they may have its `@r`.
    """
    norms = (n.rpartition(".")[0] + ".state_norm" for n, node in graph.nodes.items() if node.kind == "delta_rule")
    known = {*graph.nodes, *KNOWN_EXTRAS, *norms}
    stated = (name.partition("@")[0] for name in (*trace.info.rows, *trace.info.heads))
    used = dict.fromkeys([*trace.arrays, *stated])
    others = [name for name in used if name not in known and not is_part(name)]
    misnamed, alike = _by_prefix(others, known)
    unknown = []
    for name in others:
        if name not in alike:
            found = _meant(graph, name, known, known - {*trace.arrays})
            misnamed += [found] if found else []
            unknown += [] if found else [name]
    return misnamed, unknown


def _by_prefix(names: Sequence[str], known: Collection[str]) -> tuple[list[Misnamed], set[str]]:
    """Names that a common prefix makes wrong, too many or too few words of it, as one each; and all these names."""
    begins = {n.partition(".")[0] + "." for n in known if "." in n}
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        cuts = [i + 1 for i, letter in enumerate(name) if letter in "./"]
        if found := next((name[:cut] for cut in cuts if name[cut:] in known), None):
            groups.setdefault(("begin", found), []).append(name)
        elif lost := next((begin for begin in begins if begin + name in known), None):
            groups.setdefault(("lack", lost), []).append(name)
    misnamed, alike = [], set()
    for (what, prefix), group in groups.items():
        if len(group) > 1:
            why = (
                f"{len(group)} names begin with {prefix!r}"
                if what == "begin"
                else f"{len(group)} names lack {prefix!r}"
            )
            meant = group[0].removeprefix(prefix) if what == "begin" else prefix + group[0]
            misnamed.append(Misnamed(group[0], meant, f"this and others, {why}"))
            alike |= {*group}
    return misnamed, alike


def _meant(graph: Graph, name: str, known: Collection[str], free: Collection[str]) -> Misnamed | None:
    """The result that a name was probably meant for; results that the trace lacks come first."""
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
    """The part of a name after the layer's number."""
    return _NUMBER.split(name, 1)[-1].lstrip(".")


def _nearest(name: str, known: Collection[str], free: Collection[str]) -> str | None:
    """The most similar of the known names; names in `free` come first. None if none is similar."""
    for candidates in ([n for n in known if n in free], list(known)):
        if name in candidates:
            return name
        if near := difflib.get_close_matches(name, candidates, 1, _LIKE):
            return near[0]
    return None
