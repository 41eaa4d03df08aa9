"""The mistakes that may have been made where a wrong result was computed, the likeliest first."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.enumerate import Enumeration
from karat.check.mistakes.fitted import fits
from karat.check.mistakes.part import Part, Rows, row_parts
from karat.check.mistakes.parts import within
from karat.check.model.graph import Edits
from karat.check.model.tokens import Misplaced
from karat.check.replay.finding import LIMIT, Finding
from karat.check.replay.replay import Replay

# Of the mistakes in a segment of several layers: those made in all of them or beside them, and those made in one.
Scope = Literal["any", "all layers", "one layer"]
_FILLED = 0.5  # of the tokens that a part can reach, those that are wrong
_PARTS = 3  # parts of the tokens that are tried
# Bytes are read alike on all ranks, and an engine's type is the same on all of them.
_OF_ALL_RANKS = ("dtype-", "byte-order", "quant-", "overflow-", "reduce-missing", "shard-", "bias-times-tp")
_OF_WEIGHTS = ("weight", "effective")  # which are the same in all steps


class Proposals:
    """Mistakes of one model over the tokens of one trace."""

    def __init__(self, replay: Replay, enumeration: Enumeration) -> None:
        self._replay, self._graph, self._enumeration = replay, replay.graph, enumeration
        self._by_layers: dict[tuple[int, ...], list[Variant]] = {}
        self._ends = list(enumeration.of_ends())

    def layers(self, names: Iterable[str]) -> tuple[int, ...]:
        return tuple(sorted({layer for n in names if (layer := self._graph.nodes[n].layer) is not None}))

    def singles(self, names: tuple[str, ...], name: str, scope: Scope = "any") -> Iterator[Variant]:
        """The mistakes that change the segment, each once, and mistakes of its last node with fitted numbers."""
        yield from self.enumerated(names, scope)
        if scope == "one layer":
            return
        node = self._graph.nodes[name]
        recorded = self._replay.recorded[name]
        if recorded.present is None:
            inputs = [self._replay.value(source) for source in node.inputs]
            yield from fits(node, inputs, recorded.values, self._replay.context)

    def enumerated(self, names: tuple[str, ...], scope: Scope = "any") -> Iterator[Variant]:
        """The mistakes without a free number that change the segment, each once, of one scope or of any.

        The embedding, the final norm and the head come first if they are in the segment, then all its layers, then
        single ones.
        """
        for variant, is_of_one in self._in_order(names):
            if scope == "any" or is_of_one == (scope == "one layer"):
                yield variant

    def _in_order(self, names: tuple[str, ...]) -> Iterator[tuple[Variant, bool]]:
        """The same with whether each is a mistake of one of several layers."""
        inside = set(names)
        layers = self.layers(names)
        seen: set[Any] = set()
        pools = [(self._enumerated(layers), False)]
        if len(layers) > 1:
            pools.append(([*self._enumeration.of_all_norms(), *self._enumeration.of_all_sums()], False))
            pools += [(self._enumerated((layer,)), True) for layer in layers]
        has_ends = any(self._graph.nodes[name].layer is None for name in names)
        pools.insert(0 if has_ends else len(pools), (self._ends, False))
        parts: list[Variant] = []  # mistakes that change nodes outside too: tried last, as they claim more than is seen
        for variant, is_of_one in ((variant, is_of_one) for pool, is_of_one in pools for variant in pool):
            edits = {n: params for n, params in variant.edits.items() if n in inside}
            if not self._is_computable(edits, inside):
                continue
            if edits and len(edits) < len(variant.edits):
                outside = {n: params for n, params in variant.edits.items() if n not in inside}
                parts.append(replace(variant, edits=edits, outside=outside))
            elif edits and (key := (variant.bug, frozen(edits))) not in seen:
                seen.add(key)
                yield variant, is_of_one
        whole = seen.copy()
        for variant in parts:
            key = (variant.bug, frozen(variant.edits))
            if key not in whole and (there := (*key, frozen(variant.outside))) not in seen:
                seen.add(there)
                yield variant, False

    def _is_computable(self, edits: Edits, inside: Container[str]) -> bool:
        """Whether what the nodes read under these edits is recorded, or computed before them."""
        order = self._graph.order
        return all(
            source not in inside or order[source] < order[name]
            for name, params in edits.items()
            for source in params.get("inputs", ())
        )

    def in_rows(self, finding: Finding, scope: Scope) -> Iterator[Variant]:
        """Mistakes in the steps or sequences in which a result of several ops is wrong."""
        parts = self._rows(finding)
        if not parts:
            return
        first = int(self._replay.tokens.steps[self._wrong(finding)].min())
        read = [name for name in finding.segment if self._graph.nodes[name].kind in ("scores", "mix")]
        layers = self.layers(read)
        for among in [layers] if scope == "all layers" else [(layer,) for layer in layers if len(layers) > 1]:
            names = [name for name in read if self._graph.nodes[name].layer in among]
            for step in range(max(1, first - 1), first + 1):
                for fault in (Misplaced(-1, step), Misplaced(1, step)):
                    yield Variant("kv-stale", fault.text, {name: {"cache": fault} for name in names})
        for variant in self.singles(finding.segment, finding.name, scope):
            if not any(key in params for params in variant.edits.values() for key in _OF_WEIGHTS):
                yield from (v for rows in parts if (v := within(variant, Part(rows=rows), self._graph)))

    def _wrong(self, finding: Finding) -> Any:
        """[tokens]: whether a token's row is wrong."""
        wrong = np.zeros(self._replay.tokens.num_tokens, bool)
        domain = self._replay.domain(self._graph.nodes[finding.name])
        wrong[domain[np.array(finding.by_token) > LIMIT]] = True
        return wrong

    def _rows(self, finding: Finding) -> list[Rows]:
        """The parts of the tokens from which what is wrong can have come: attention takes it to later tokens."""
        tokens, wrong = self._replay.tokens, self._wrong(finding)
        seen = np.isin(np.arange(tokens.num_tokens), self._replay.domain(self._graph.nodes[finding.name]))
        if not len(finding.by_token) or wrong[seen].all() or not wrong.any():
            return []
        found: dict[bytes, Rows] = {}
        for rows in row_parts(tokens):
            mask = rows.of(tokens)
            first = np.full(int(tokens.sequences.max()) + 1, tokens.context)
            np.minimum.at(first, tokens.sequences[mask], tokens.positions[mask])
            reached = (tokens.positions >= first[tokens.sequences]) & seen
            if not (wrong & ~reached).any() and reached.any() and wrong[reached].mean() >= _FILLED:
                found.setdefault(mask.tobytes(), rows)
        return sorted(found.values(), key=lambda rows: rows.steps == "in")[:_PARTS]

    def on_ranks(self, finding: Finding, degrees: Iterable[int], scope: Scope) -> Iterator[Variant]:
        """Mistakes of several ops on one of so many ranks."""
        singles = [v for v in self.singles(finding.segment, finding.name, scope) if not v.bug.startswith(_OF_ALL_RANKS)]
        for degree in degrees:
            for variant in singles:
                if not variant.fitted:
                    parts = (within(variant, Part((rank, degree)), self._graph) for rank in range(degree))
                    yield from (part for part in parts if part)

    def _enumerated(self, layers: tuple[int, ...]) -> list[Variant]:
        if layers not in self._by_layers:
            self._by_layers[layers] = list(self._enumeration.of_layers(layers))
        return self._by_layers[layers]


def frozen(edits: Mapping[str, Mapping[str, Any]]) -> Any:
    return tuple(sorted((name, tuple(sorted(params.items(), key=lambda kv: kv[0]))) for name, params in edits.items()))
