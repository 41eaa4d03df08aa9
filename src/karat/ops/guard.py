"""Guard: wraps an executor and stops at the first impossible result; the error names op, layer and token."""

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.errors import NumericsError
from karat.ops.api import Observer, Op, PagedAttention, Rope, Step, Tensor
from karat.ops.executor import Executor
from karat.ops.tap import Tap

Array = NDArray[np.floating]

# Every result goes through a norm; the sum of squares of larger numbers may overflow float32.
LARGEST = 1e18
# Far beyond the logits of a trained model; a softmax over such logits is one token.
LARGEST_LOGIT = 1e6
# Relative. Rounding moves the sum of a softmax, or a length that RoPE keeps, by a few units in the last place only.
SLACK = 1e-3


class Guard(Tap):
    """An executor with the same bits as `inner` that checks every named result. No result is kept.

    The op at which a fault arises raises NumericsError: for NaN, infinity, magnitudes above LARGEST, attention weights
    below 0 or with a sum other than 1 (with sinks: above 1), RoPE that changes a pair's length, logits of a token that
    are all equal, and logits above LARGEST_LOGIT. The engine runs a failed batch again sequence by sequence, so only
    the request at fault ends with this error.
    """

    def __init__(self, inner: Executor) -> None:
        super().__init__(inner, keep=lambda name: not name.endswith((".scores", ".weights")))
        self._batch: ForwardBatch | None = None

    def begin(self, batch: ForwardBatch) -> Step:
        self._batch = batch
        return super().begin(batch)

    def _record(self, name: str, x: Tensor) -> Tensor:
        values = self.read(x)
        if not np.isfinite(values).all():
            self._stop(name, values, ~np.isfinite(values), "every result before it was finite")
        limit = LARGEST_LOGIT if name == "lm_head" else LARGEST
        if max(values.max(initial=0), -values.min(initial=0)) > limit:
            self._stop(name, values, np.abs(values) > limit, f"magnitudes stay below {limit:g} in a model that works")
        if name == "lm_head" and values.shape[-1] > 1:
            same = np.ptp(values, axis=-1, keepdims=True) == 0
            if same.any():
                self._stop(name, values, same & np.ones_like(values, bool), "all logits of the token are this number")
        return x

    def apply(self, op: Op[Any]) -> Any:
        if isinstance(op, PagedAttention):
            op = replace(op, observe=self._looking_at_weights(op))
        result = super().apply(op)
        if isinstance(op, Rope):
            self._look_at_lengths(op.name, *(np.asarray(self.read(x), np.float64) for x in (op.x, result)))
        return result

    def _look_at_lengths(self, name: str, before: Array, after: Array) -> None:
        """Of x [tokens, heads, head_dim] before and after RoPE."""
        lengths, turned = (np.linalg.norm(part, axis=-1) for part in (before, after))
        seen = lengths > 1e-20 * max(1.0, float(lengths.max(initial=0)))
        ratios = np.where(seen, turned / np.where(seen, lengths, 1), 1.0)
        factor = float(np.median(ratios[seen])) if seen.any() else 1.0  # yarn multiplies all lengths by one factor
        wrong = seen & (np.abs(ratios - factor) > SLACK * factor)
        if wrong.any():
            why = f"times its length before RoPE, others {factor:.6g} times; RoPE must keep lengths"
            self._stop(name, ratios, wrong, why)

    def _looking_at_weights(self, op: PagedAttention) -> Observer:
        prefix, observe = op.name.rpartition(".")[0], op.observe
        sequences = count()

        def look(what: str, values: Array) -> None:
            if what == "weights":
                self._look_at_weights(f"{prefix}.weights", values, next(sequences), op.sinks is not None)
            if observe:
                observe(what, values)

        return look

    def _look_at_weights(self, name: str, weights: Array, sequence: int, has_sinks: bool) -> None:
        """weights [heads, new tokens, keys] of one sequence."""
        assert self._batch is not None, "a result before any batch"
        sums = weights.sum(axis=-1, dtype=np.float64)
        fits = sums <= 1 + SLACK if has_sinks else np.abs(sums - 1) <= SLACK
        most = "at most 1" if has_sinks else "1"
        bad = ~fits | (weights.min(axis=-1) < 0)
        if bad.any():
            head, row = (int(i) for i in np.argwhere(bad)[0])
            position = self._batch.positions[self._batch.query_starts[sequence] + row]
            least, total = weights[head, row].min(), sums[head, row]
            raise NumericsError(
                f"{name}[{head}, {row}]: weights of at least {least:.6g} with sum {total:.6g}, expected 0 and {most}, "
                f"at position {position} of sequence {sequence} of the step, head {head} (--guard)"
            )

    def _stop(self, name: str, values: Array, wrong: NDArray[np.bool_], why: str) -> None:
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise NumericsError(
            f"{name}{list(index)}: {values[index]:.6g} at {self._place(index[0], len(values))}; {why} (--guard); "
            "`karat trace` and `karat diagnose` show what this op was given"
        )

    def _place(self, row: int, num_rows: int) -> str:
        assert self._batch is not None, "a result before any batch"
        batch = self._batch
        token = row if num_rows == batch.num_tokens else int(batch.logit_rows[row])
        sequence = int(np.searchsorted(batch.query_starts, token, side="right")) - 1
        return f"position {batch.positions[token]} of sequence {sequence} of the step"
