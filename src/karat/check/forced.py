"""Karat's ops fed another engine's own inputs (teacher forcing): what each op does, apart from all that came before it.

Karat's executor runs the layer; what an op makes is kept, and what the other engine had there is handed on in its
place. So op by op the two sides start from the same numbers, and differ by the rounding of one op.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from karat.check.compare import aligned
from karat.check.distances import distance
from karat.check.replay import LIMIT, Array, Replay
from karat.check.trace import Trace, TraceInfo
from karat.ops.api import Ops, Tensor
from karat.ops.tap import Tap

# Two right results of one op, each within the limit of the exact one.
FORCED_LIMIT = 2 * LIMIT
_ATTENTION = ("scores", "softmax", "mix")  # one op of an executor, whose steps feed each other


class ForcedTap(Tap):
    """Records what `inner` makes of each op, and hands on `theirs` instead, where there is a result of that name."""

    def __init__(self, inner: Ops, theirs: Mapping[str, Array]) -> None:
        super().__init__(inner)
        self._theirs = theirs

    def _record(self, name: str, x: Tensor) -> Tensor:
        super()._record(name, x)
        theirs = self._theirs.get(name)
        if theirs is None:
            return x
        parts = self.records[name]
        stop = sum(len(part) for part in parts)
        return theirs[stop - len(parts[-1]) : stop].reshape(parts[-1].shape).astype(parts[-1].dtype)


@dataclass(frozen=True, slots=True)
class Local:
    """An op of ours on another engine's inputs beside that engine's result: the largest difference, and the largest in
    multiples of its row's noise floor."""

    name: str
    ratio: float
    error: float

    @property
    def is_wrong(self) -> bool:
        return not self.ratio <= FORCED_LIMIT


def local_errors(
    replay: Replay, theirs: Trace, before: Mapping[str, Array], forced: Mapping[str, Array], *, same_type: bool
) -> list[Local]:
    """One for each result that both sides have. replay: of our own run, its results judged; before: what `theirs` had
    before this part; forced: ours on their inputs. Our floors serve where both sides compute in the `same_type`.
    """
    their_info: TraceInfo = theirs.info
    # Attention is computed through from q, k and v, as executors do.
    through = {name: array for name, array in theirs.arrays.items() if not name.endswith((".scores", ".weights"))}
    lent = Replay(replay.graph, replay.context.weights, Trace(their_info, {**before, **through}))
    right, ours = aligned(replay, theirs), aligned(replay, Trace(replay.trace.info, forced))
    found = []
    for name in replay.graph.nodes:
        if name not in right or name not in ours:
            continue
        error = distance(ours[name], right[name])
        largest = float(error.max(initial=0))
        if not largest:
            found.append(Local(name, 0.0, 0.0))
            continue
        floor = replay.floors.get(name)
        if floor is None or not same_type or replay.graph.nodes[name].kind in _ATTENTION:
            segment = lent.segment(name)
            floor = lent.floor(segment, lent.run(segment)).max(axis=-1, keepdims=True)
        with np.errstate(all="ignore"):
            ratio = np.divide(error, floor, out=error)
        ratio[np.isnan(ratio)] = 0
        found.append(Local(name, float(ratio.max()), largest))
    return found
