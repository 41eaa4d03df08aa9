"""The resolution of a trace: how exactly a bug could be located with its results, layer by layer.

Two ops between the same recorded results are one place: the first wrong result is the same for both, and only a name
may tell them apart. A bug in an op that no recorded result is computed through is not seen.
"""

from collections.abc import Iterable, Mapping, Sequence

from karat.check.model.graph import Graph
from karat.check.model.roles import layers_text, shortened
from karat.check.replay.replay import Replay


def resolution(replay: Replay) -> str:
    """The resolution of one trace beside its model, in words."""
    graph = replay.graph
    text = resolution_of(graph, {name: replay.segment(name) for name in graph.nodes if name in replay.recorded})
    partial = [name for name in graph.nodes if name in replay.recorded and replay.is_partial(name)]
    if not partial:
        return text
    return f"{text}; only some tokens or heads are there of {shortened(partial, graph)}, and no others are judged"


def resolution_of(graph: Graph, segments: Mapping[str, Sequence[str]]) -> str:
    """The same, from each recorded result and the ops that it is computed over."""
    ops = [name for name, node in graph.nodes.items() if node.kind != "select"]
    seen_by: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for result, names in segments.items():
        for name in names:
            seen_by[name].append(result)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in ops:
        groups.setdefault(tuple(seen_by[name]), []).append(name)
    unseen = groups.pop((), [])
    if not unseen and all(len(group) == 1 for group in groups.values()):
        return "complete: a bug is located to the op"
    if not groups:
        return "nothing: no result of the model is recorded"
    said: dict[str, list[str]] = {"to the op": [], "to the layer": [], "to a few ops": []}
    stretches = []
    group_of = {name: group for group in groups.values() for name in group}
    for part in _parts(graph, [name for name in ops if name in group_of]):
        found = [group_of[name] for name in part]
        if all(len(group) == 1 for group in found):
            said["to the op"] += part
        elif not all(set(group) <= set(part) for group in found):
            whole = found[0]
            if _is_stretch(graph, whole, group_of):
                if whole not in stretches:
                    stretches.append(whole)
            else:
                said["to a few ops"] += part
        else:
            said["to the layer" if len(found[0]) == len(part) else "to a few ops"] += part
    lines = [f"{how}: {_where(graph, names)}" for how, names in said.items() if names]
    begin = "a bug is located " if lines else "a bug "
    if stretches:
        which = "; or to this range: ".join(_where(graph, names) for names in stretches)
        lines.append(f"{'elsewhere it ' if lines else ''}can only be narrowed down to this range: {which}")
        lines[-1] += ", and named if one mistake, in one layer or in all, gives what follows"
    if unseen:
        whole_layers = [part for part in _parts(graph, unseen) if len(part) == len(_all_of(graph, part[0]))]
        rest = [name for name in unseen if not any(name in part for part in whole_layers)]
        named = [_where(graph, [name for part in whole_layers for name in part])] if whole_layers else []
        lines.append(f"not at all: {', '.join(named + ([shortened(rest, graph)] if rest else []))}")
    return begin + "; ".join(lines)


def _parts(graph: Graph, names: Iterable[str]) -> list[list[str]]:
    """Names by layer; a name outside of the layers is a part of its own."""
    parts: dict[object, list[str]] = {}
    for name in names:
        layer = graph.nodes[name].layer
        parts.setdefault(name if layer is None else layer, []).append(name)
    return list(parts.values())


def _all_of(graph: Graph, name: str) -> list[str]:
    """All ops of a name's layer, or the name alone."""
    layer = graph.nodes[name].layer
    return [name] if layer is None else [n for n, node in graph.nodes.items() if node.layer == layer]


def _is_stretch(graph: Graph, group: Sequence[str], group_of: Mapping[str, Sequence[str]]) -> bool:
    """Whether a group holds every op that is seen of the layers it touches."""
    return all(group_of.get(n, group) is group for name in group for n in _all_of(graph, name))


def _where(graph: Graph, names: Iterable[str]) -> str:
    """Layers as ranges, then names outside of layers: layers 0-2, lm_head."""
    layers = [layer for name in names if (layer := graph.nodes[name].layer) is not None]
    ends = [name for name in names if graph.nodes[name].layer is None]
    return ", ".join(([layers_text(layers)] if layers else []) + ends)
