"""A replay: each recorded result computed again from the recorded results before it, and the noise floor of its rows.

The floor is measured, not assumed. The same computation is made in float32 and in float64, and with every input and
intermediate result moved at random by the precision of the engine's type (as TTrace, arXiv 2506.09280, does for
training). An error that rounding explains lies within a small multiple of the floor.
"""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Collection, Iterator, Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from karat.check.model.context import Weights
from karat.check.model.graph import KINDS, Edits, Graph, Node
from karat.check.replay import routing
from karat.check.replay.distances import distance, gap, largest_finite, pooled
from karat.check.replay.finding import F32, F64, LIMIT, Array, Finding
from karat.check.replay.noise import PRECISION
from karat.check.replay.runs import Runs
from karat.check.trace.format import Trace
from karat.config import FloatName

_DRAWS = 3
# Numbers of noise at least that a row's floor is the largest of, each drawn by itself. Where rounding errors are normal
# and one row has a single number, three draws are all less than a tenth of its error once in a thousand rows.
_NUMBERS = 16
MANY = 128  # tokens, from which on one draw of noise has enough values
_WIDE = 64  # features, from which on one draw of noise has enough values
_ENOUGH = 8  # tokens, for the floor of a feature to be its own
_LARGEST: Mapping[FloatName, float] = {"float64": 1.7e308, "float32": 3.4e38, "bfloat16": 3.4e38, "float16": 65504.0}


class Replay(Runs):
    """The runs of a trace, judged. Raises TraceError if trace and graph do not fit each other."""

    def __init__(self, graph: Graph, weights: Weights, trace: Trace, *, seed: int = 0) -> None:
        super().__init__(graph, weights, trace, seed=seed)
        self.beyond_judging: list[str] = []
        self._wrong: dict[str, NDArray[np.uint8]] = {}  # packed bits: the values of a result beyond the limit
        self.floors: dict[str, Array] = {}  # the largest floor of each row [..., 1] of the results judged so far

    def floor(self, names: tuple[str, ...], expected: Array, edits: Edits | None = None) -> Array:
        """How far rounding alone moves each value of the last of `names`; broadcastable to it.

        It is the largest move within the value's row, or within its feature over all tokens if that is less. A row is a
        token's; in scores, weights and RoPE it is one head's of a token.
        """
        edits = edits or {}
        kind = self.graph.nodes[names[-1]].kind
        if kind == "chosen_ids":
            return self._floor_of_choice(names)
        row = (-2, -1) if kind == "linear" and expected.ndim == 3 else (-1,)
        with np.errstate(all="ignore"):
            spread = self.unit * KINDS[kind].rounded(expected)
            num_draws = max(_DRAWS, -(-_NUMBERS // prod(expected.shape[axis] for axis in row)))
            draws: list[tuple[np.dtype[np.floating], int]] = [(F64, draw) for draw in range(num_draws)]
            if self.is_wide(names):
                # With thousands of values one draw is enough, with noise and float32 in the same pass.
                draws = [(self.noisy_dtype, 0)]
            for dtype, draw in draws:
                moved = self._run(names, edits, dtype, self.unit, self._noisy[draw % 2])
                np.fmax(spread, gap(moved, expected), out=spread)
            if self.trace.info.integers and len(names) > 1:
                right: dict[str, Array] = {}
                self._run(names, edits, F64, 0.0, self.context, kept=right)
                moved = self._run(names, edits, F64, self.unit, self._noisy[0], right=right)
                np.fmax(spread, gap(moved, expected), out=spread)
            if self.unit == PRECISION["float32"] and len(draws) > 1:
                single = self._run(names, edits, F32, 0.0, self.context)
                np.fmax(spread, gap(single, expected), out=spread)
        spread[~np.isfinite(spread)] = 0
        recorded = self.recorded.get(names[-1])
        if recorded is not None and recorded.present is not None:
            spread = np.where(recorded.present, spread, 0)  # inputs of the other rows may be missing
        by_row = spread.max(axis=row, keepdims=True)
        num_rows = len(spread) if recorded is None or recorded.present is None else int(recorded.present.sum())
        if kind in ("scores", "softmax") or num_rows < _ENOUGH:
            return by_row
        # A feature that is small in every token, by small weights, has a floor of its own.
        return np.minimum(by_row, spread.max(axis=0, keepdims=True))

    def _floor_of_choice(self, names: tuple[str, ...]) -> Array:
        """The floor of chosen experts, in marks: those of two may be this far apart."""
        node = self.graph.nodes[names[-1]]
        rule, source, marks = node.params["routing"], node.inputs[0], self.marks(node)
        if source not in names:
            return routing.floor_of(marks, rule, self.unit)
        before = names[: names.index(source) + 1]
        return routing.floor_of(marks, rule, self.unit, self.floor(before, self.run(before)))

    def marks(self, node: Node) -> Array:
        """What a choice of experts ranks, of the logits that were recorded."""
        return routing.marks_of(self.value(node.inputs[0]), node.params["routing"], self.context.weights)

    def row_floors(self, names: tuple[str, ...]) -> dict[str, Array]:
        """The floor of each row [..., 1] of all `names`, each computed from the one before; fewer runs than `floor`."""
        right: dict[str, Array] = {}
        self._run(names, {}, F64, 0.0, self.context, kept=right)
        kinds = {name: self.graph.nodes[name].kind for name in names}
        spread = {}
        with np.errstate(all="ignore"):
            for name in names:
                if kinds[name] == "chosen_ids":
                    spread[name] = self._floor_of_choice(self._segments.of(name))
                    continue
                sizes = KINDS[kinds[name]].rounded(np.where(np.isfinite(right[name]), right[name], 0))  # no masks
                spread[name] = self.unit * sizes.max(axis=-1, keepdims=True)
            for draw in range(1 if self.tokens.num_tokens >= MANY else _DRAWS):
                moved: dict[str, Array] = {}
                self._run(names, {}, self.noisy_dtype, self.unit, self._noisy[draw % 2], kept=moved)
                for name in [name for name in names if kinds[name] != "chosen_ids"]:
                    rows = np.fmax.reduce(gap(moved[name], right[name]), axis=-1, keepdims=True)
                    spread[name] = np.fmax(spread[name], np.where(np.isfinite(rows), rows, 0))
        return {name: pooled(rows) if kinds[name] in ("scores", "softmax") else rows for name, rows in spread.items()}

    @property
    def noisy_dtype(self) -> np.dtype[np.floating]:
        """The type of a single noisy run: float32, whose rounding adds to the noise, unless the engine's is finer."""
        return F64 if self.unit < PRECISION["float32"] else F32

    def is_wide(self, names: tuple[str, ...]) -> bool:
        """Whether a result is one product of many tokens and features."""
        node = self.graph.nodes[names[-1]]
        alone = len(names) == 1 and node.kind == "linear" and self.features(node)[-1] >= _WIDE
        return alone and self.tokens.num_tokens >= MANY

    def judge(self, name: str, names: tuple[str, ...], expected: Array, edits: Edits | None = None) -> Finding:
        """Compare the recorded result `name` with `expected`, the result of `names` under `edits`."""
        recorded, node = self.recorded[name], self.graph.nodes[name]
        got = recorded.values
        if node.kind == "chosen_ids":
            got, expected = (routing.of_chosen(ids, self.marks(node)) for ids in (got, expected))
        error = distance(got, expected)
        if recorded.present is not None:
            error = np.where(recorded.present, error, 0)
        if self.graph.nodes[name].kind == "softmax":
            error = np.where(self.undefined(name, expected), 0, error)
        scale = largest_finite(expected)
        exact = not error.any()
        if edits and any("effective" in params for params in edits.values()):
            error = np.where(self.overflowed(name, expected, edits), 0, error)
        if not error.any():
            return Finding(name, 0.0, 0.0, scale, (), exact, names, odd=self._odd(name, expected))
        floor = self.floor(names, expected, edits)
        if edits is None:
            self.floors[name] = floor.max(axis=-1, keepdims=True)
        among = self._beyond_limit(name, error, floor, edits)
        largest = float((error if among is None else error[among]).max(initial=0))
        with np.errstate(all="ignore"):
            ratio = np.divide(error, floor, out=error)  # 0 / 0 where there is neither error nor floor
        ratio[np.isnan(ratio)] = 0
        where = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        tokens = 1 if self.graph.nodes[name].kind in ("scores", "softmax") else 0
        by_token = tuple(ratio.max(axis=tuple(axis for axis in range(ratio.ndim) if axis != tokens)).tolist())
        place = tuple(int(i) for i in where)
        odd = self._odd(name, expected)
        return Finding(name, float(ratio.max()), largest, scale, place, False, names, by_token, odd)

    def wrong(self, name: str) -> NDArray[np.bool_] | None:
        """The values of a recorded result that were judged wrong, in its node's shape; None if all are right."""
        bits, shape = self._wrong.get(name), self.recorded[name].values.shape
        return None if bits is None else np.unpackbits(bits, count=prod(shape)).view(bool).reshape(shape)

    def _beyond_limit(self, name: str, error: Array, floor: Array, edits: Edits | None) -> NDArray[np.bool_] | None:
        """The values of a result that are wrong without any mistake assumed; None if all are right."""
        if edits is not None:
            return self.wrong(name)
        wrong = error > LIMIT * floor
        if not wrong.any():
            self._wrong.pop(name, None)
            return None
        self._wrong[name] = np.packbits(wrong)
        return wrong

    def _odd(self, name: str, expected: Array) -> tuple[int, ...]:
        """The index of the first NaN or infinity in a recorded result, masks aside."""
        recorded = self.recorded[name]
        odd = ~np.isfinite(recorded.values)
        if not odd.any():
            return ()
        kind = self.graph.nodes[name].kind
        if recorded.present is not None:
            odd &= recorded.present
        if kind == "scores":
            odd &= ~np.isneginf(recorded.values)
        if kind == "softmax":
            odd &= ~self.undefined(name, expected)
        return tuple(int(i) for i in np.argwhere(odd)[0]) if odd.any() else ()

    def overflowed(self, name: str, expected: Array, edits: Edits) -> NDArray[np.bool_]:
        """Values that may overflow the engine's type with the wrong weights of `edits`, and be anything large."""
        node = self.graph.nodes[name]
        largest = _LARGEST[self.trace.info.dtype]
        effective = edits.get(name, {}).get("effective")
        if effective is None or node.kind == "scores":
            return np.zeros(1, bool)
        with np.errstate(all="ignore"):
            large = ~(np.abs(self.recorded[name].values) < 1e-3 * largest) & ~np.isnan(expected)
            if not large.any():
                return large
            reached = np.abs(expected)
            if node.kind == "linear":
                x = np.abs(self._input(node.inputs[0]))
                reached = (x.reshape(len(x), -1) @ np.abs(effective(self.context.weights, F64)).T).reshape(
                    expected.shape
                )
            return large & ~(reached < 0.1 * largest)

    def undefined(self, name: str, expected: Array) -> NDArray[np.bool_]:
        """Where all scores of a softmax are masked: an engine may write anything there."""
        scores = self.recorded.get(self.graph.nodes[name].inputs[0])
        if scores is None:
            return np.zeros((1, 1, 1), bool)
        masked = np.isneginf(scores.values)
        found = masked.all(axis=-1, keepdims=True) | (masked & np.isnan(expected))
        return found if scores.present is None else np.where(scores.present, found, np.isnan(expected))

    def findings(self, among: Collection[str] | None = None) -> list[Finding]:
        """A finding for each recorded result (of `among`) whose recorded inputs are finite, in order of computation.

        Ops with NaN or infinity among their inputs cannot be judged; their names go to `beyond_judging`.
        """
        return list(self.judged(among))

    def judged(self, among: Collection[str] | None = None) -> Iterator[Finding]:
        """The same, one by one."""
        for name in self.graph.nodes:
            if name in self.recorded and (among is None or name in among):
                names = self.segment(name)
                if self._has_finite_inputs(names):
                    yield self.judge(name, names, self.run(names))
                else:
                    self.beyond_judging.append(name)

    def _has_finite_inputs(self, names: tuple[str, ...]) -> bool:
        read = {s for n in names for s in self.graph.nodes[n].inputs} - {*names} | {*names[:-1]} & {*self.recorded}
        return all(self.is_finite(source) for source in read)
