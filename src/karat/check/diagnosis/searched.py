"""Free numbers of mistakes in ops that are not recorded: a search for the number that gives the next recorded result.

The search begins with the first tokens. They depend on no token after them, and a wrong base of RoPE turns them least,
so the search does not end in a false minimum.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from karat.check.diagnosis.budget import SearchBudget
from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.linear import zeros
from karat.check.mistakes.part import Part
from karat.check.mistakes.parts import within
from karat.check.model.graph import Edits, Node
from karat.check.replay.distances import distance
from karat.check.replay.finding import LIMIT, Finding
from karat.check.replay.replay import Replay

_REACHES = (4, 12, 40, 1 << 20)


def searched(replay: Replay, finding: Finding, budget: SearchBudget) -> Iterator[Variant]:
    """Mistakes in a segment of several nodes, each with a number found by search. They are proposals, as all fits are.

    In a segment of several layers those of all layers; `of_each` has those of single ones. Stops when the time is up.
    """
    nodes = [replay.graph.nodes[name] for name in finding.segment]
    turned = {node.name: node.params["rope"] for node in nodes if node.kind == "rope"}
    if turned:
        rope = next(iter(turned.values()))

        def bases(theta: float) -> Edits:
            return {name: {"rope": replace(rope, theta=theta)} for name in turned}

        theta = _minimum(replay, finding, budget, bases, 50.0, 2e7, 48)
        for value in _rounded(theta, rope.theta):
            yield Variant("rope-theta", f"theta {value:g} instead of {rope.theta:g}", bases(value), fitted=True)
    for node in nodes:
        if node.kind == "embedding" and not budget.is_spent:

            def factors(factor: float, name: str = node.name) -> Edits:
                return _scaled(name, factor).edits

            for value in _rounded(_minimum(replay, finding, budget, factors, 1 / 300, 300, 36), 1.0):
                yield _scaled(node.name, value)
    for kind, numbers in _NUMBERS.items():
        if same := [node for node in nodes if node.kind == kind]:
            yield from numbers(replay, finding, budget, same)
    if len({node.layer for node in nodes} - {None}) < 2:
        yield from of_each(replay, finding, budget)


def of_each(replay: Replay, finding: Finding, budget: SearchBudget) -> Iterator[Variant]:
    """Numbers of one op, where several of its kind are in the segment."""
    nodes = [replay.graph.nodes[name] for name in finding.segment]
    for kind, numbers in _NUMBERS.items():
        same = [node for node in nodes if node.kind == kind]
        for node in same if len(same) > 1 else ():
            yield from numbers(replay, finding, budget, [node])


def from_where_it_begins(replay: Replay, finding: Finding) -> Iterator[Variant]:
    """Tables of RoPE and windows that end before the first position whose result is wrong."""
    nodes = [replay.graph.nodes[name] for name in finding.segment]
    positions = replay.tokens.positions[replay.domain(nodes[-1])]
    wrong = positions[np.array(finding.by_token) > LIMIT]
    if not len(wrong) or (first := int(wrong.min())) < 1:
        return
    kinds = {kind: [node.name for node in nodes if node.kind == kind] for kind in ("rope", "scores")}

    def at(kind: str, **params: Any) -> Edits:
        return dict.fromkeys(kinds[kind], params)

    if kinds["rope"] and first > 1:
        detail = f"position {first - 1} for all after it"
        yield Variant("rope-position", detail, at("rope", positions=("clipped", first - 1)), fitted=True)
        detail = f"positions from {first} on count from 0 again"
        yield Variant("rope-position", detail, at("rope", positions=("wrapped", first)), fitted=True)
    if kinds["scores"]:
        yield Variant("mask-window", f"a window of {first}", at("scores", window=first), fitted=True)


def _scales(replay: Replay, finding: Finding, budget: SearchBudget, nodes: Sequence[Node]) -> Iterator[Variant]:
    def scales(scale: float) -> Edits:
        return {node.name: {"scale": scale} for node in nodes}

    right = nodes[0].params["scale"]
    if not budget.is_spent and all(node.params["scale"] == right for node in nodes):
        for value in _rounded(_minimum(replay, finding, budget, scales, right / 100, right * 100, 24), right):
            detail = f"multiplied by {value:.6g} instead of {right:.6g}"
            yield Variant("scale-wrong", detail, scales(value), fitted=True)


def _epsilons(replay: Replay, finding: Finding, budget: SearchBudget, nodes: Sequence[Node]) -> Iterator[Variant]:
    def epsilons(eps: float) -> Edits:
        return {node.name: {"eps": eps} for node in nodes}

    right = nodes[0].params["eps"]
    if not budget.is_spent and all(node.params["eps"] == right for node in nodes):
        what = nodes[0].role if len(nodes) == 1 else "all norms"
        for value in _rounded(_minimum(replay, finding, budget, epsilons, 1e-9, 1.0, 12), right):
            yield Variant("norm-eps", f"{what}: eps {value:g} instead of {right:g}", epsilons(value), fitted=True)


_NUMBERS = {"scores": _scales, "norm": _epsilons}  # by the kind of node; all of these nodes have the same number


def same_by_factor(replay: Replay, finding: Finding, mistakes: Iterable[Variant]) -> Iterator[Variant]:
    """Factors of an embedding that is not recorded which have the same effect as these mistakes of its readers.

    Another eps of a norm has the effect of a factor before the norm, and so has a residual that counts twice. And a
    factor of all that is added up before the norms is another eps of all of them.
    """
    inside = {name for name in finding.segment if replay.graph.nodes[name].kind == "embedding"}
    for mistake in mistakes:
        if mistake.bug == "reduce-mean" and not inside.isdisjoint(mistake.edits):
            factor = mistake.edits[next(iter(inside))]["output_factor"]
            norms = [node for name in finding.segment if (node := replay.graph.nodes[name]).kind == "norm"]
            norms = [node for node in norms if node.layer is None or "." not in node.role]
            edits = {node.name: {"eps": node.params["eps"] / factor**2} for node in norms}
            eps = ", ".join(sorted({f"{params['eps']:g}" for params in edits.values()}))
            yield Variant("norm-eps", f"all norms: eps {eps}", edits, fitted=True)
            continue
        for name, params in mistake.edits.items():
            node = replay.graph.nodes[name]
            if inside.isdisjoint(node.inputs[:1]):
                continue
            if node.kind == "norm" and params.keys() == {"eps"} and params["eps"] > 0:
                yield _scaled(node.inputs[0], (node.params["eps"] / params["eps"]) ** 0.5)
            elif node.kind == "add" and params.keys() == {"factors"} and (factor := params["factors"][0]) not in (0, 1):
                yield _scaled(node.inputs[0], float(factor))


def same_by_zeros(replay: Replay, finding: Finding, mistakes: Iterable[Variant]) -> Iterator[Variant]:
    """Weights of v that are zeros on a rank, where these mistakes leave out what that rank adds to o_proj."""
    graph = replay.graph
    for mistake in mistakes:
        for name, params in mistake.edits.items():
            node, (rank, degree) = graph.nodes[name], params.get("input_part", (0, 0))
            values = graph.by_role.get((node.layer, "self_attn.v_proj"))
            if degree == 2 and node.role == "self_attn.o_proj" and values and values.name in finding.segment:
                of_zeros = Variant("weight-missing", "self_attn.v_proj: zeros", {values.name: zeros(values)})
                if variant := within(of_zeros, Part((1 - rank, degree)), graph):
                    yield variant


def _scaled(embedding: str, factor: float) -> Variant:
    return Variant("embed-scale", f"multiplied by {factor:.6g}", {embedding: {"output_factor": factor}}, fitted=True)


def _minimum(
    replay: Replay,
    finding: Finding,
    budget: SearchBudget,
    edits: Callable[[float], Edits],
    low: float,
    high: float,
    num_points: int,
) -> float:
    """The number between low and high, searched on a logarithmic scale, that leaves the least error within the time."""
    recorded = replay.recorded[finding.name]
    there: Any = True if recorded.present is None else recorded.present
    node = replay.graph.nodes[finding.name]
    positions = replay.tokens.positions[replay.domain(node)]
    axis = 1 if node.kind in ("scores", "softmax") else 0  # of tokens

    @cache
    def left(log: float, reach: int) -> float:
        rows = positions < reach
        if budget.is_spent or not rows.any():
            return np.inf
        with np.errstate(all="ignore"):
            error = distance(recorded.values, replay.run(finding.segment, edits(float(np.exp(log)))))
            total = float(np.square(np.compress(rows, np.where(there, error, 0), axis=axis)).sum())
        return total if np.isfinite(total) else np.inf

    grid = np.linspace(np.log(low), np.log(high), num_points)
    best = float(min(grid, key=lambda log: left(log, _REACHES[0])))
    width = float(grid[1] - grid[0])
    for reach in _REACHES:
        for _ in range(10):
            best = min(
                (best - width, best - width / 2, best, best + width / 2, best + width), key=lambda log: left(log, reach)
            )
            width *= 0.55
        width *= 16  # with more tokens the minimum may lie some way back
    return float(np.exp(best))


def _rounded(value: float, right: float) -> Iterator[float]:
    """The number with few digits, as a person may have written it, then with more and more."""
    seen = {right}
    for digits in (1, 2, 3, 4, 6, 9):
        near = float(f"{value:.{digits}g}")
        if near not in seen:
            seen.add(near)
            yield near
