"""Karat's ops on another engine's inputs (teacher forcing): each op by itself, without the errors of the ops before it.

Karat's executor runs the layer. The result of an op is recorded, and the next op reads the other engine's result in its
place. So for each op the two sides start from the same numbers, and differ by the rounding of one op.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from karat.check.replay import routing
from karat.check.replay.distances import distance
from karat.check.replay.finding import LIMIT, Array
from karat.check.replay.replay import Replay
from karat.check.trace.format import Trace
from karat.ops.api import Tensor
from karat.ops.executor import Executor
from karat.ops.tap import Tap

# Two right results of one op, each within the limit of the exact one.
FORCED_LIMIT = 2 * LIMIT
_ATTENTION = ("scores", "softmax", "mix")  # an executor computes these as one op, whose steps feed each other


class ForcedTap(Tap):
    """Records each result of `inner`, and passes on the result of `theirs` of that name instead, if there is one."""

    def __init__(self, inner: Executor, theirs: Mapping[str, Array]) -> None:
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
    """A result of Karat's op on another engine's inputs, beside that engine's result.

    error: the largest difference. ratio: the largest in multiples of its row's noise floor.
    """

    name: str
    ratio: float
    error: float

    @property
    def is_wrong(self) -> bool:
        return not self.ratio <= FORCED_LIMIT


def local_errors(
    replay: Replay, theirs: Trace, before: Mapping[str, Array], forced: Mapping[str, Array], *, same_type: bool
) -> list[Local]:
    """A Local for each result that both sides have.

    replay     of Karat's own run, already judged; its floors serve if both sides compute in the `same_type`
    theirs     the other engine's results of this part
    before     its results of the part before
    forced     Karat's results on its inputs
    """
    graph = replay.graph
    # Attention is computed through from q, k and v, as executors do.
    through = {name: array for name, array in theirs.arrays.items() if not name.endswith((".scores", ".weights"))}
    lent = Replay(graph, replay.context.weights, Trace(theirs.info, {**before, **through}))
    floors = {} if not same_type else {n: f for n, f in replay.floors.items() if graph.nodes[n].kind not in _ATTENTION}
    found = []
    for name, node in graph.nodes.items():
        if name not in theirs.arrays or name not in forced:
            continue
        ours, other = forced[name], theirs.arrays[name]
        if node.kind == "chosen_ids":
            ours, other = (routing.of_chosen(ids, lent.marks(node)) for ids in (ours, other))
        rows = _largest_of_rows(ours, other)
        largest = float(rows.max(initial=0))
        if not largest:
            found.append(Local(name, 0.0, 0.0))
            continue
        if name not in floors:
            last = graph.by_role[node.layer, "self_attn.attention"].name if node.kind in _ATTENTION else name
            floors |= lent.row_floors(lent.segment(last if last in theirs.arrays else name))
        with np.errstate(all="ignore"):
            ratio = rows / floors[name][..., 0]
        ratio[np.isnan(ratio)] = 0
        found.append(Local(name, float(ratio.max()), largest))
    return found


def _largest_of_rows(ours: Array, theirs: Array) -> Array:
    """The largest difference in each row [...]. The difference of two close numbers is exact in their own type."""
    theirs = theirs.reshape(ours.shape)
    with np.errstate(all="ignore"):
        gap = np.subtract(ours, theirs)
        rows = np.abs(gap, out=gap).max(axis=-1)
    if not np.isfinite(rows).all():  # masks, or NaN
        rows = distance(ours, theirs).max(axis=-1)
    widened: Array = rows.astype(np.float64)
    return widened
