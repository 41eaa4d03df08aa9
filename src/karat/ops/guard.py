"""Guard: wraps an executor and stops at the first result that is not finite, with its op, layer and token."""

import numpy as np

from karat.batch import ForwardBatch
from karat.errors import NumericsError
from karat.ops.api import Ops, Step, Tensor
from karat.ops.tap import Tap


class Guard(Tap):
    """Ops that behave as `inner` does, bit for bit, and look at every named result. Nothing is kept.

    NaN or infinity raises NumericsError at the op where it arises. The engine runs a batch that fails again sequence
    by sequence, so only the request at fault ends, with this error.
    """

    def __init__(self, inner: Ops) -> None:
        super().__init__(inner, keep=lambda name: not name.endswith((".scores", ".weights")))
        self._batch: ForwardBatch | None = None

    def begin(self, batch: ForwardBatch) -> Step:
        self._batch = batch
        return super().begin(batch)

    def _record(self, name: str, x: Tensor) -> Tensor:
        values = self._inner.read(x)
        if not np.isfinite(values).all():
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise NumericsError(
                f"{name}{list(index)}: {values[index]} at {self._place(index[0], len(values))}; every result before it "
                "was finite (--guard); `karat trace` and `karat diagnose` show what this op was given"
            )
        return x

    def _place(self, row: int, num_rows: int) -> str:
        assert self._batch is not None, "a result before any batch"
        batch = self._batch
        token = row if num_rows == batch.num_tokens else int(batch.logit_rows[row])
        sequence = int(np.searchsorted(batch.query_starts, token, side="right")) - 1
        return f"position {batch.positions[token]} of sequence {sequence} of the step"
