"""The error of a sequential sum: dot products added up one after the other in float32, on a sample.

A naive loop strays about sqrt(length) further than a blocked sum, and both are right. So the noise floor has the error
of the longest chain that an engine may use. It is measured on real inputs and on the weights that the node has (wrong
ones under a mistake), relative to the norms of the two vectors.
"""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.attention import kv_heads_read
from karat.check.mistakes.weight_readings import Effective
from karat.check.model.context import Context
from karat.check.model.graph import Node
from karat.check.model.right.experts import Inner, activation_of, inner

Array = NDArray[np.floating]
F64 = np.dtype(np.float64)

_ROWS, _COLUMNS = 12, 24
_INNER = 2048  # features of an expert


class Accumulation:
    """Amplitudes of the noise that summation adds to each row of a node's result."""

    def __init__(self, context: Context, seed: int) -> None:
        self._context = context
        self._rng = np.random.default_rng(seed)
        self._measured: dict[tuple[str, Effective | None], tuple[float, float]] = {}

    def amplitude(self, node: Node, inputs: Sequence[Array], factor: float) -> Array | None:
        """How far a sequential sum strays, broadcastable to the result; None for a node without a sum.

        factor: the precision of the accumulator relative to float32.
        """
        with np.errstate(all="ignore"):
            match node.kind:
                case "linear":
                    x = inputs[0].reshape(len(inputs[0]), -1)
                    error, norm = self._once(node, lambda: self._of_linear(node, x))
                    out = factor * error * norm * np.linalg.norm(x, axis=-1)  # [tokens]
                    return out.reshape(-1, *(1,) * (2 if node.params.get("head_dim") else 1))
                case "scores":
                    q, k, *_ = inputs
                    error, norm = self._once(node, lambda: self._of_scores(q, k))
                    norm *= abs(float(node.params["scale"]))
                    return factor * error * norm * np.linalg.norm(q, axis=-1).T[..., None]
                case "mix":
                    weights, v, *_ = inputs
                    error, norm = self._once(node, lambda: self._of_mix(node, weights, v))
                    largest = np.linalg.norm(weights, axis=-1).max(axis=0)  # [tokens]
                    return factor * error * norm * largest[:, None]
                case "experts":
                    x, ids, by, *_ = inputs
                    error, norm = self._once(node, lambda: self._of_experts(node, x, ids.astype(np.int64)))
                    return factor * error * norm * (np.linalg.norm(x, axis=-1) * np.abs(by).sum(axis=-1))[:, None]
        return None

    def _once(self, node: Node, measure: Callable[[], tuple[float, float]]) -> tuple[float, float]:
        """An error relative to the norms, and a norm; measured once for a node and the weights that it has."""
        key = node.name, node.mistakes.get("effective")
        if key not in self._measured:
            self._measured[key] = measure()
        return self._measured[key]

    def _of_linear(self, node: Node, x: Array) -> tuple[float, float]:
        name, weights = node.params["weight"], self._context.weights
        out_features = weights.shape(name)[0]
        start = int(self._rng.integers(max(1, out_features - _COLUMNS)))
        stop = min(start + _COLUMNS, out_features)
        effective: Effective | None = node.mistakes.get("effective")
        if effective is None:
            return self._measure(x, weights.rows(name, F64, start, stop))
        return self._measure(x, effective(weights, F64)[start:stop])

    def _of_experts(self, node: Node, x: Array, ids: NDArray[np.int64]) -> tuple[float, float]:
        """Relative to the norm of x, what the three products of an expert stray by: of the one that most rows chose."""
        clamp, number = node.params["clamp"], int(np.bincount(ids.reshape(-1)).argmax())
        rows = x[(ids == number).any(axis=-1)][:_ROWS]
        gate, up, down = (self._of_expert(node, part, number) for part in ("gates", "ups", "downs"))
        activated = activation_of(node.params)
        gates, ups = rows @ gate.T, rows @ up.T
        h = inner(Inner(gates, ups, clamp, activated))
        (of_gate, gate_norm), (of_up, up_norm), (of_down, down_norm) = (
            self._measure(a, b) for a, b in ((rows, gate), (rows, up), (h, down))
        )
        by_inputs = of_gate * gate_norm * _rms(ups) + of_up * up_norm * _rms(activated(gates))  # each number of h
        by_sum = of_down * float(np.nanmax(np.linalg.norm(h, axis=-1) / np.linalg.norm(rows, axis=-1), initial=0))
        return by_inputs + by_sum, down_norm

    def _of_expert(self, node: Node, part: str, number: int) -> Array:
        """One of an expert's matrices; of those that are very large the first inner features."""
        weights, name = self._context.weights, node.params[part][number]
        if part == "downs":
            return weights.array(name, F64)[:, :_INNER]
        return weights.rows(name, F64, 0, min(_INNER, weights.shape(name)[0]))

    def _of_scores(self, q: Array, k: Array) -> tuple[float, float]:
        error, norm = self._measure(q.reshape(-1, q.shape[-1]), k.reshape(-1, k.shape[-1]))
        return error, max(norm, float(np.nanmax(np.linalg.norm(k, axis=-1), initial=0)))

    def _of_mix(self, node: Node, weights: Array, v: Array) -> tuple[float, float]:
        largest = float(np.nanmax(np.linalg.norm(v.reshape(len(v), -1), axis=0), initial=0))
        if not self._context.tokens.is_single or weights.shape[-1] != len(v):
            error, _ = self._measure(weights.reshape(-1, weights.shape[-1]), np.ones((1, weights.shape[-1])))
            return error, largest
        head = kv_heads_read(node, len(weights), v.shape[1])[-1]
        error, norm = self._measure(weights[-1], v[:, head].T)
        return error, max(norm, largest)

    def _measure(self, rows: Array, columns: Array) -> tuple[float, float]:
        """Relative error of sequential float32 sums of rows · columns, and the root mean square norm of a column."""
        rows = rows[np.isfinite(rows).all(axis=-1)]
        columns = columns[np.isfinite(columns).all(axis=-1)]
        if not len(rows) or not len(columns):
            return 0.0, 0.0
        a = rows[self._rng.permutation(len(rows))[:_ROWS]]
        b = columns[self._rng.permutation(len(columns))[:_COLUMNS]]
        products = a.astype(np.float32)[:, None, :] * b.astype(np.float32)[None]
        chain = np.add.accumulate(products, axis=-1)[..., -1].astype(np.float64)
        exact = a.astype(np.float32).astype(np.float64) @ b.astype(np.float32).astype(np.float64).T
        sizes = np.linalg.norm(a, axis=-1)[:, None] * np.linalg.norm(b, axis=-1)[None]
        counts = (sizes > 0) & np.isfinite(chain) & np.isfinite(sizes)  # weights read wrongly may be of any size
        error = np.divide(np.abs(chain - exact), sizes, out=np.zeros(sizes.shape), where=counts).max()
        return float(error), float(np.sqrt(np.mean(np.sum(b * b, axis=-1))))


def _rms(x: Array) -> float:
    return float(np.sqrt(np.mean(x * x)))
