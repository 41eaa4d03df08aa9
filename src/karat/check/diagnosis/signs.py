"""Good signs and red flags of a run, as a person would look for them by eye."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.check.model.graph import Graph
from karat.check.trace.format import Array, Trace, TraceInfo

_DECISIVE = ("no NaN and no infinity", "attention weights sum to 1")
_SUM_SLACK = 64  # roundings of a softmax that was stored in the engine's type
_ALIKE = 0.999


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign. good: False for a red flag. A healthy model may raise some flags too (see is_decisive)."""

    name: str
    good: bool
    detail: str

    @property
    def is_decisive(self) -> bool:
        """Whether a red flag alone shows that something is wrong."""
        return self.name in _DECISIVE


def signs(graph: Graph, trace: Trace, precision: float) -> list[Sign]:
    """Every sign, in the order of computation. `precision` is half a unit in the last place of the engine's type."""
    health = HealthSigns(graph, trace.info, precision)
    health.look(trace.arrays)
    return health.signs()


class HealthSigns:
    """Collects signs, from a whole trace or from one part of a model after the other.

    `flagged` maps names of attention weights to heads that look at one position only.
    """

    def __init__(self, graph: Graph, info: TraceInfo, precision: float) -> None:
        self._graph, self._info, self._precision = graph, info, precision
        self._bad: list[str] = []
        self._off_by = 0.0
        self._num_weights = self._num_same = self._num_heads = self._num_turned = self._num_qkv = 0
        self.flagged: dict[str, list[int]] = {}
        self._zero: list[str] = []
        self._unturned: list[str] = []
        self._num_hidden = 0
        self._still: list[str] = []
        self._likeliest: NDArray[np.int64] | None = None

    def look(self, arrays: Mapping[str, Array]) -> None:
        """Look at arrays of the trace; arrays that belong together (q, and q after RoPE) must come in one call."""
        for name, array in arrays.items():
            wrong = np.isnan(array) | np.isposinf(array) | (np.isneginf(array) & (not name.endswith(".scores")))
            if wrong.any():
                self._bad.append(f"{name}{[int(i) for i in np.argwhere(wrong)[0]]}")
            node = self._graph.nodes.get(name)
            if node is None:
                continue
            if node.kind == "softmax":
                self._look_at_weights(name, np.asarray(array, np.float64), node.params["sinks"] is not None)
            elif node.kind == "linear" and node.params.get("head_dim"):
                self._num_qkv += 1
                self._zero += [] if array.any() else [name]
            elif node.kind == "rope" and node.inputs[0] in arrays:
                self._look_at_turning(name, arrays[node.inputs[0]], array)
            elif node.role == "layer":
                self._num_hidden += 1
                self._still += [name] if len(array) > 1 and _all_rows_equal(array) else []
            elif name == "lm_head" and len(array) > 7 and np.isfinite(array).all():
                self._likeliest = np.asarray(array).reshape(-1, array.shape[-1]).argmax(axis=-1)

    def signs(self) -> list[Sign]:
        """Every sign of the arrays seen so far."""
        bad = self._bad
        found = [Sign("no NaN and no infinity", not bad, f"first at {bad[0]}, in {len(bad)} results" if bad else "")]
        if self._num_weights:
            slack = _SUM_SLACK * self._precision + 1e-12
            same = f"identical in {self._num_same} of {self._num_weights} layers" if self._num_same else ""
            found.append(
                Sign("attention weights sum to 1", self._off_by <= slack, f"off by at most {self._off_by:.2g}")
            )
            found.append(Sign("heads differ from each other", self._num_same == 0, same))
        if self._num_heads:
            single = sum(map(len, self.flagged.values()))
            first = next(((name, heads[0]) for name, heads in self.flagged.items()), None)
            where = f": {first[0].removesuffix('.weights')} head {first[1]}" if first else ""
            detail = f"{single} of {self._num_heads} heads look at one position only{where}"
            found.append(Sign("heads look at more than one position", single < max(1, self._num_heads // 2), detail))
        if self._num_qkv:
            found.append(Sign("q, k and v are not all zero", not self._zero, ", ".join(self._zero[:4])))
        if self._num_turned:
            found.append(Sign("RoPE changes q and k", not self._unturned, ", ".join(self._unturned[:4])))
        if self._num_hidden and len(set(self._info.token_ids)) > 1:
            found.append(Sign("hidden states differ between tokens", not self._still, ", ".join(self._still[:4])))
        if self._likeliest is not None:
            distinct = len(np.unique(self._likeliest))
            detail = f"{distinct} in {len(self._likeliest)} rows"
            found.append(Sign("the likeliest token changes", distinct > 1, detail))
        return found

    def _look_at_weights(self, name: str, weights: NDArray[np.float64], has_sinks: bool) -> None:
        """weights [heads, tokens, keys]. Sinks have the rest of a sum below 1."""
        self._num_weights += 1
        over = np.nan_to_num(weights, nan=np.inf).sum(axis=-1) - 1
        self._off_by = max(self._off_by, float(np.maximum(over, 0 if has_sinks else -over).max()))
        late = weights[:, weights.shape[1] // 2 :]
        if late.shape[1] < 3:
            return
        self._num_heads += len(weights)
        for head, rows in enumerate(late):
            top = rows.argmax(axis=-1)
            if np.isfinite(rows).all() and (top == top[0]).all() and rows.max(axis=-1).min() > _ALIKE:
                self.flagged.setdefault(name, []).append(head)
        self._num_same += len(weights) > 1 and bool(np.ptp(weights, axis=0).max() == 0)

    def _look_at_turning(self, name: str, before: Array, after: Array) -> None:
        moved = np.array(self._info.positions) > 0
        if moved.any():
            self._num_turned += 1
            first, second = (np.asarray(x).reshape(len(moved), -1)[moved] for x in (before, after))
            self._unturned += [name] if np.array_equal(first, second) else []


def _all_rows_equal(array: Array) -> bool:
    rows = array.reshape(-1, array.shape[-1])
    return bool((rows == rows[0]).all())
