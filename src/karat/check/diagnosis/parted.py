"""The part of a wrong result in which a mistake was made, found from its numbers.

A part is a free choice, so it has to be a natural one (karat.check.mistakes.part), all that is wrong has to lie in it,
and all in it has to be as the mistake makes it. The whole comes before a part, a part of few words before one of many.
"""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.cache import TYPES, other_cache_text
from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.fitted import fits
from karat.check.mistakes.fitted_cache import caches
from karat.check.mistakes.part import Part, Rows, row_parts
from karat.check.mistakes.parts import axis_of_rank, is_by_inputs, share, units, within
from karat.check.mistakes.scope import DEGREES
from karat.check.replay.distances import distance, largest_finite
from karat.check.replay.finding import LIMIT, Array, Finding
from karat.check.replay.replay import Replay

Mask = NDArray[np.bool_]
# Before the floor under a mistake is measured, a number within this multiple of the right one's floor is the mistake's.
_NEAR = 30.0
_TRIED = 3  # parts of a mistake that are judged


@dataclass(frozen=True, eq=False)
class Parted:
    """One wrong result of a single op, and where it is wrong."""

    replay: Replay
    finding: Finding

    @cached_property
    def _right(self) -> Array:
        return self.replay.run(self.finding.segment)

    @cached_property
    def _floor(self) -> Array:
        return self.replay.floor(self.finding.segment, self._right)

    @cached_property
    def _error(self) -> Array:
        recorded = self.replay.recorded[self.finding.name]
        error = distance(recorded.values, self._right)
        return error if recorded.present is None else np.where(recorded.present, error, 0)

    @cached_property
    def wrong(self) -> Mask:
        """The values that are not right."""
        return self._error > LIMIT * self._floor

    @cached_property
    def _rows(self) -> list[tuple[Rows | None, Mask]]:
        """All tokens, and natural parts of them, over the rows of the result."""
        node = self.replay.graph.nodes[self.finding.name]
        tokens, domain = self.replay.tokens, self.replay.domain(node)
        every: list[tuple[Rows | None, Mask]] = [(None, np.ones(len(domain), bool))]
        return every + [(rows, rows.of(tokens)[domain]) for rows in row_parts(tokens)]

    def _by_token(self, mask: Mask) -> Mask:
        node = self.replay.graph.nodes[self.finding.name]
        tokens = 1 if node.kind in ("scores", "softmax") else 0
        found: Mask = np.any(mask, axis=tuple(axis for axis in range(mask.ndim) if axis != tokens))
        return found

    def rows_of_wrong(self) -> list[Rows]:
        """Natural parts of the tokens with all that is wrong, those of few words first."""
        needs = self._by_token(self.wrong)
        return [rows for rows, mask in self._rows if rows is not None and not (needs & ~mask).any()]

    def variants(self, variants: Sequence[Variant]) -> Iterator[Variant]:
        """The mistakes in the parts in which they may have been made; to be judged."""
        node = self.replay.graph.nodes[self.finding.name]
        if self.wrong.all() and not is_by_inputs(node):
            return
        for variant in variants:
            if any(params.get("factor") == 0 for params in variant.edits.values()):
                continue  # zeros
            if not is_by_inputs(node) or not all("effective" in p or "weight" in p for p in variant.edits.values()):
                yield from self._of(variant)
                continue
            yield from self._of(variant)
            for degree in degrees(self.replay):
                parts = (Part((rank, degree), None, self._extent(rank, degree)) for rank in range(degree))
                yield from (v for part in parts if (v := within(variant, part, self.replay.graph)))

    def fits(self) -> Iterator[Variant]:
        """Mistakes with a number that is fitted to the wrong tokens alone."""
        node, recorded = self.replay.graph.nodes[self.finding.name], self.replay.recorded[self.finding.name]
        wrong = self._by_token(self.wrong)
        if node.kind == "rope" and recorded.present is None and not wrong.all():
            inputs = [self.replay.value(source) for source in node.inputs]
            yield from fits(node, inputs, recorded.values, self.replay.context, wrong)
        if node.kind == "scores" and not self.wrong.all():
            with np.errstate(all="ignore"):
                factors = (recorded.values / self._right)[self.wrong & np.isfinite(self._right)]
            if len(factors) and np.isfinite(factor := float(np.median(factors))):
                right = node.params["scale"]
                detail = f"multiplied by {factor * right:.6g} instead of {right:.6g}"
                yield Variant("scale-wrong", detail, {node.name: {"scale": factor * right}}, fitted=True)

    def caches(self) -> Iterator[Variant]:
        """A cache of another type than is stated, and slots of it that hold other keys."""
        node, recorded = self.replay.graph.nodes[self.finding.name], self.replay.recorded[self.finding.name]
        info = self.replay.trace.info
        if node.kind in ("scores", "mix") and info.kv_dtype is not None:
            for dtype in (dtype for dtype in TYPES if dtype != info.kv_dtype):
                yield Variant("kv-dtype", other_cache_text(dtype, info.kv_dtype), {node.name: {"stored_as": dtype}})
        if node.kind == "scores" and recorded.present is None:
            q, k = (self.replay.value(source) for source in node.inputs)
            mix = self.replay.graph.by_role[node.layer, "self_attn.attention"].name
            yield from caches(node, mix, q, k, recorded.values, self.wrong, self.replay.context)

    def _of(self, variant: Variant) -> Iterator[Variant]:
        """A mistake in each part that its numbers fit, the fewest words first."""
        with np.errstate(all="ignore"):
            made = self.replay.run(self.finding.segment, variant.edits)
        if made.shape != self._right.shape:
            return
        scale = max(1.0, largest_finite(made) / max(self.finding.scale, 1e-300))
        error = distance(self.replay.recorded[self.finding.name].values, made)
        near = error <= _NEAR * scale * self._floor
        if not near[self.wrong].all():
            return
        found = 0
        for part in self._parts(~near):
            if (made_there := within(variant, part, self.replay.graph)) is not None:
                yield made_there
                found += 1
                if found == _TRIED:
                    return

    def _parts(self, other: Mask) -> Iterator[Part]:
        """Natural parts with all that is wrong and nothing of `other`: values that the mistake does not give."""
        recorded = self.replay.recorded[self.finding.name]
        if recorded.present is not None:
            other = other & recorded.present
        needs, others = self._by_token(self.wrong), self._by_token(other)
        for rows, mask in self._rows:
            if rows is not None and not (needs & ~mask).any() and not (others & mask).any():
                yield Part(None, rows)
        for rows, mask in self._rows:
            if not (needs & ~mask).any():
                for degree, rank in self._ranks:
                    mine = self._of_rank(rank, degree)
                    if not self._by_token(self.wrong & ~mine).any() and not (self._by_token(other & mine) & mask).any():
                        yield Part((rank, degree), rows, self._extent(rank, degree))

    @cached_property
    def _ranks(self) -> list[tuple[int, int]]:
        """(degree, rank) of each rank that holds all that is wrong."""
        node = self.replay.graph.nodes[self.finding.name]
        if is_by_inputs(node) or not units(self.replay.graph, node, 1):
            return []
        pairs = [(degree, rank) for degree in degrees(self.replay) for rank in range(degree)]
        return [(degree, rank) for degree, rank in pairs if not (self.wrong & ~self._of_rank(rank, degree)).any()]

    def _of_rank(self, rank: int, degree: int) -> Any:
        """The values of one rank, broadcastable to the result."""
        node = self.replay.graph.nodes[self.finding.name]
        ndim, axis = self._right.ndim, axis_of_rank(node, self._right.ndim)
        mine = np.zeros(self._right.shape[axis], bool)
        mine[share(len(mine), rank, degree)] = True
        return mine.reshape([-1 if a == axis else 1 for a in range(ndim)])

    def _extent(self, rank: int, degree: int) -> str:
        node = self.replay.graph.nodes[self.finding.name]
        heads = units(self.replay.graph, node, self._right.shape[-1])
        mine = share(heads, rank, degree)
        what = "columns" if ".mlp." in node.name or node.name == "lm_head" else "heads"
        return f"{what} {mine.start}-{mine.stop - 1}" if mine.stop - mine.start > 1 else f"{what[:-1]} {mine.start}"


def degrees(replay: Replay) -> tuple[int, ...]:
    """The numbers of ranks that are possible: what the trace states, else a few."""
    stated = replay.trace.info.ranks
    return (stated,) if stated > 1 else DEGREES
