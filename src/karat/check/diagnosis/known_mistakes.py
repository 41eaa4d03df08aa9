"""The mistakes that were named so far. They are tried first on results that are computed through wrong ones.

Where a trace has only some tokens of K and V, the other tokens are computed, with every mistake before them. A result
that the known mistakes reproduce needs no search and gets no name of its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.parts import PART
from karat.check.model.graph import Edits

Key = tuple[tuple[str, str], ...]


class Explains(Protocol):
    """What reproduced a result."""

    @property
    def variants(self) -> tuple[Variant, ...]: ...

    @property
    def key(self) -> Key: ...


class KnownMistakes:
    """Mistakes with all places where they were found, and the results that nothing explained."""

    def __init__(self) -> None:
        self.known: dict[Key, tuple[Variant, ...]] = {}
        self._best: dict[Key, None] = {}
        self.unexplained: set[str] = set()

    def add(self, name: str, explanations: Sequence[Explains], *, follows: bool = False) -> None:
        """Adds what reproduces a wrong result, best first. `follows`: the result is wrong because others are."""
        for explanation in explanations:
            before = self.known.get(explanation.key, ())
            self.known[explanation.key] = tuple(
                _joined(variant, [v for v in before if v.key == variant.key]) for variant in explanation.variants
            )
        if explanations:
            self._best[explanations[0].key] = None
        elif not follows:
            self.unexplained.add(name)

    def singly(self, segment: Sequence[str]) -> Iterator[tuple[Variant, ...]]:
        """Each known explanation that was found at a node of this segment."""
        inside = set(segment)
        for variants in self.known.values():
            if any(not inside.isdisjoint(variant.edits) for variant in variants):
                yield variants

    def best(self) -> list[tuple[Variant, ...]]:
        """The best explanation of every result so far, each once."""
        return [self.known[key] for key in self._best]

    def together(self) -> tuple[Variant, ...]:
        return tuple(variant for variants in self.best() for variant in variants)


def merged(variants: Iterable[Variant]) -> Edits | None:
    """The edits of all variants; None where two give one parameter different values, or a node different parts."""
    edits: dict[str, dict[str, Any]] = {}
    for variant in variants:
        for name, params in variant.edits.items():
            known = edits.setdefault(name, {})
            if known and known.get(PART) != params.get(PART):
                return None
            for key, value in params.items():
                if key in known and known[key] != value:
                    return None
                known[key] = value
    return edits


def _joined(variant: Variant, others: Iterable[Variant]) -> Variant:
    """A mistake with the places of others of its kind too; unchanged where they contradict it."""
    edits: Mapping[str, Any] | None = merged([variant, *others])
    return variant if edits is None else replace(variant, edits=edits)
