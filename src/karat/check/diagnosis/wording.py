"""A diagnosis in plain lines for people."""

import math
from collections.abc import Sequence
from dataclasses import replace

from karat.check.diagnosis.explain import EVERYTHING
from karat.check.diagnosis.pattern_words import pattern_lines, token_text
from karat.check.diagnosis.stated import position_lines
from karat.check.diagnosis.verdict import Diagnosis, Named, Wrong
from karat.check.mistakes.bugs import BUGS
from karat.check.model.graph import Graph
from karat.check.model.roles import shortened
from karat.check.replay.finding import Finding
from karat.check.trace.format import TraceInfo, rows_of
from karat.models.decoder import end_names

_SHOWN = 8


def diagnosis_lines(diagnosis: Diagnosis, graph: Graph, info: TraceInfo) -> list[str]:
    """The verdict first, then each bug with its evidence, then what was not judged, or is not in the trace."""
    judged = len(diagnosis.findings)
    engine = "an engine without a name (executor)" if info.executor == "unknown" else info.executor
    lines = [
        f"{engine}, {info.dtype}: {info.num_tokens} tokens in {len(info.steps)} "
        f"step{'s' * (len(info.steps) > 1)}, {judged} results re-run from their recorded inputs"
    ]
    if diagnosis.is_healthy:
        worst = max(diagnosis.findings, key=lambda f: f.ratio, default=None)
        if worst is None:
            lines.append("verdict: nothing to judge")
        elif all(finding.exact for finding in diagnosis.findings):
            lines.append("verdict: exact")
        elif diagnosis.is_undecided:
            lines.append(
                f"verdict: undecided; if the engine rounds activations, the largest error is {times(worst.ratio)} the "
                f"noise floor ({worst.name}), and if it does not, this is a bug"
            )
        else:
            lines.append(f"verdict: numerics; the largest error is {times(worst.ratio)} the noise floor ({worst.name})")
    else:
        lines.append("verdict: bug")
    if diagnosis.assumed is not None:
        lines.append(diagnosis.assumed.text(alone=diagnosis.is_healthy))
    lines += position_lines(info)
    for number, named in enumerate(diagnosis.named, 1):
        lines += ["", *_named_lines(named, graph, info, number if len(diagnosis.named) > 1 else None)]
    alike = _alike(diagnosis.unexplained)
    for wrong in alike[:_SHOWN]:
        lines += ["", *_unexplained_lines(wrong, graph, info)]
    if others := [wrong.finding.name for group in alike[_SHOWN:] for wrong in group]:
        lines += ["", f"wrong as well, and explained by no known mistake: {shortened(others, graph)}"]
    if odd := diagnosis.not_finite:
        names = shortened([finding.name for finding in odd], graph)
        where = place(replace(odd[0], where=odd[0].odd), graph, info)
        lines += [
            "",
            f"not finite: {names}{where}: NaN or infinity, and what the model's weights give: one of them is "
            "not finite, or the numbers overflow",
        ]
    if diagnosis.beyond_judging:
        lines += ["", f"not judged: {shortened(diagnosis.beyond_judging, graph)}, whose inputs hold NaN or infinity"]
    if diagnosis.follows:
        lines += ["", f"follows from the above: {shortened(diagnosis.follows, graph)}, computed through what is wrong"]
    if diagnosis.missing:
        lines += ["", f"not in the trace: {shortened(diagnosis.missing, graph)}"]
    if diagnosis.resolution:
        lines.append(diagnosis.resolution)
    return lines


def located(finding: Finding, graph: Graph) -> str:
    """The first wrong result in words, before its cause is searched for."""
    node = graph.nodes[finding.name]
    where = "" if node.layer is None else f", layer {node.layer} of {graph.config.num_layers}"
    inside = len({graph.nodes[name].layer for name in finding.segment} - {None})
    over = f" (computed over {inside} layers)" if inside > 1 else ""
    return (
        f"located: {finding.name}{where}{over} is the first result that its recorded inputs do not give: off by "
        f"{finding.error:.3g}, {times(finding.ratio)} the noise floor; searching for what explains it"
    )


def _named_lines(named: Named, graph: Graph, info: TraceInfo, number: int | None) -> list[str]:
    first = named.first
    best = first.explanations[0]
    prefix = f"{number}. " if number else ""
    names = ["+".join(sorted(bugs)) for bugs in named.classes]
    if len(named.classes) == 1 and len(named.classes[0]) == 1:
        lines = [f"{prefix}{names[0]}: {BUGS[names[0]].title}"]
    elif len(named.classes) == 1:
        lines = [f"{prefix}{names[0]}: two mistakes at one place"]
        lines += [f"   {bug}: {BUGS[bug].title}" for bug in sorted(named.classes[0])]
    else:
        lines = [f"{prefix}one of {', '.join(names)}: this trace cannot tell them apart"]
        lines += [f"   {bug}: {BUGS[bug].title}" for bug in sorted(named.bugs)]
    lines.append(f"   where      {_where(named, graph)}")
    lines.append(f"   how        {'; or '.join(named.details[:4])}")
    lines += [f"   elsewhere  {'; '.join(named.elsewhere[:4])}"] if named.elsewhere else []
    lines.append(
        f"   evidence   {first.finding.name}{place(first.finding, graph, info)}: off by {first.finding.error:.3g} "
        f"({times(first.finding.ratio)} the noise floor) as it should be computed, "
        f"by {best.error:.3g} ({times(best.ratio)}) with this mistake"
    )
    if len(first.finding.segment) > 1:
        mistaken = dict.fromkeys(shortened(e.nodes, graph) for e in first.explanations if e.bugs in named.classes)
        lines.append(f"   mistake in {'; or '.join(list(mistaken)[:4])}{'; or …' if len(mistaken) > 4 else ''}")
        lines.append(f"   computed   {_path(first.finding, graph)}")
    lines += [f"   change     {BUGS[bug].remedy}" for bug in sorted(named.bugs)]
    return lines


def _where(named: Named, graph: Graph) -> str:
    """The places; whether they are all layers, and where of these the bug cannot be seen."""
    if not named.hidden:
        return shortened(named.places, graph)
    layers = {graph.nodes[name].layer for name in (*named.places, *named.hidden)} - {None}
    every = "all layers: " if len(layers) == graph.config.num_layers else ""
    return f"{every}{shortened(named.places, graph)}; below the floor in {shortened(named.hidden, graph)}"


def _alike(unexplained: Sequence[Wrong]) -> list[list[Wrong]]:
    """Results of one role whose pattern is the same in several layers, together; each group in order."""
    groups: dict[tuple[object, ...], list[Wrong]] = {}
    for wrong in unexplained:
        pattern = None if wrong.pattern is None else replace(wrong.pattern, share=0.0)  # which differs by chance
        key = (wrong.role, wrong.empty, wrong.not_tried, wrong.hint, pattern)
        groups.setdefault(key, []).append(wrong)
    return list(groups.values())


def _pattern(wrong: Wrong, graph: Graph, info: TraceInfo) -> list[str]:
    return [] if wrong.pattern is None else pattern_lines(wrong.pattern, wrong.finding.name, graph, info)


def _unexplained_lines(alike: Sequence[Wrong], graph: Graph, info: TraceInfo) -> list[str]:
    wrong = alike[0]
    finding = wrong.finding
    evidence = (
        f"{finding.name}{place(finding, graph, info)}: off by {finding.error:.3g} "
        f"({times(finding.ratio)} the noise floor, largest value {finding.scale:.3g})"
    )
    lines = [f"{wrong.empty or 'unexplained'}: {evidence}"]
    lines += [f"   {line}" for line in _pattern(wrong, graph, info)]
    if others := [item.finding.name for item in alike[1:]]:
        lines.append(f"   the same   {shortened(others, graph)}")
    if wrong.empty:
        lines.append("   which many mistakes may leave behind: none is named for it")
    elif wrong.not_tried == EVERYTHING:
        lines.append("   no mistake was tried there, as the time was up (--seconds)")
    else:
        lines.append("   none of the known mistakes, and no pair of them that was tried, gives the recorded numbers")
    if wrong.not_tried not in ("", EVERYTHING):
        lines.append(f"   not tried, as the time was up (--seconds): {wrong.not_tried}")
    if wrong.hint:
        lines.append(f"   {wrong.hint}")
    if len(finding.segment) > 1:
        lines.append(f"   computed {_path(finding, graph)}: what is wrong is somewhere among these")
    return lines


def _path(finding: Finding, graph: Graph) -> str:
    """The recorded results that a result was computed from, and the ops between."""
    inside = set(finding.segment)
    sources = dict.fromkeys(s for name in finding.segment for s in graph.nodes[name].inputs if s not in inside)
    begin = f"from the recorded {shortened(list(sources), graph)}" if sources else "from the token ids"
    return f"{begin} over {len(finding.segment)} ops, {finding.segment[0]} to {finding.segment[-1]}"


def place(finding: Finding, graph: Graph, info: TraceInfo) -> str:
    """The token, and the head if there is one, at which a result is furthest off."""
    if not finding.where:
        return ""
    node = graph.nodes[finding.name]
    if node.kind in ("scores", "softmax"):
        head, token = finding.where[0], finding.where[1]
        return f", head {head}, {token_text(token, info)}"
    token = finding.where[0]
    if node.name in end_names(graph.config):
        token = int(rows_of(info, "lm_head")[token])
    if node.kind == "rope" or (node.kind in ("linear", "norm") and len(finding.where) == 3):
        return f", {token_text(token, info)}, head {finding.where[1]}"
    return f", {token_text(token, info)}"


def times(ratio: float) -> str:
    """A ratio for people: 0.8 ×, 12 ×, 4.1e6 ×; ∞ for unexpected NaN or infinity."""
    if math.isinf(ratio):
        return "∞ ×"
    return (
        f"{ratio:.2g} ×"
        if ratio < 9.95
        else f"{ratio:.0f} ×"
        if ratio < 9999.5
        else f"{ratio:.1e} ×".replace("e+0", "e")
    )
