"""Tensor-parallel ranks that should have the same numbers and have not.

Each rank's copy of a result is judged on the same rank's inputs. So the rank that is wrong is found, and what other
results only inherit is no mistake of theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.check.model.graph import Graph
from karat.check.model.roles import ranges
from karat.check.model.weights import CheckpointWeights
from karat.check.replay.finding import Finding
from karat.check.replay.gathering import SPLIT, gathered
from karat.check.replay.replay import Replay
from karat.check.trace.format import Trace

_SUMS = ("self_attn.o_proj", "mlp.down_proj")  # read inner features of all ranks


@dataclass(frozen=True, slots=True)
class Disagreement:
    """name: the first result that is not equal on all ranks and wrong on some; wrong: these ranks, of num_ranks."""

    name: str
    wrong: tuple[int, ...]
    num_ranks: int

    @property
    def rank(self) -> int:
        """The rank whose results are diagnosed."""
        return self.wrong[0]

    @property
    def text(self) -> str:
        """The disagreement in a line."""
        on = f"wrong on rank{'s' * (len(self.wrong) > 1)} {ranges(self.wrong)} of {self.num_ranks}"
        if len(self.wrong) < self.num_ranks:
            on += f", right on the other{'s' * (self.num_ranks - len(self.wrong) > 1)}"
        return (
            f"ranks disagree: {self.name} is the first result that should be equal on all ranks and is not: {on}; "
            f"rank {self.rank}'s is judged"
        )


class RankTraces:
    """The ranks of one trace, some of whose results should be equal and are not: `differing`, in any order."""

    def __init__(self, graph: Graph, weights: CheckpointWeights, trace: Trace, differing: Sequence[str]) -> None:
        self._graph, self._weights, self._trace = graph, weights, trace
        self._differing = sorted((name for name in differing if name in graph.nodes), key=graph.order.__getitem__)
        self._replays: dict[int, Replay] = {}

    def disagreement(self) -> Disagreement | None:
        """Where ranks first disagree by more than rounding; None if each rank's results are right on its inputs."""
        ranks = range(self._trace.info.ranks)
        for name in self._differing:
            if wrong := tuple(rank for rank in ranks if any(f.is_wrong for f in self._replay(rank).findings((name,)))):
                return Disagreement(name, wrong, len(ranks))
        return None

    def explain(self, finding: Finding) -> bool:
        """Whether a wrong result is so because the ranks' inputs differ.

        Every value of it is what the inputs of some rank give, or this cannot be told: it is computed through a sum
        over ranks whose parts came of different inputs.
        """
        graph, inside = self._graph, set(finding.segment)
        sources = {source for name in finding.segment for source in graph.nodes[name].inputs} - inside
        if sources.isdisjoint(self._differing):
            return False
        roles = {graph.nodes[name].role for name in finding.segment}
        if len(roles) > 1 and not roles.isdisjoint((*_SUMS, "lm_head")):
            return True
        if roles.isdisjoint((*SPLIT, "lm_head")):
            return False  # each rank computed all of it, of its own inputs
        left: NDArray[np.bool_] | None = None
        for rank in range(self._trace.info.ranks):
            replay = self._replay(rank)
            if not replay.findings((finding.name,)):
                continue
            wrong = replay.wrong(finding.name)
            if wrong is None:
                return True
            left = wrong if left is None else left & wrong
        return left is not None and not left.any()

    def _replay(self, rank: int) -> Replay:
        if rank not in self._replays:
            whole, _ = gathered(self._graph, self._trace, rank)
            self._replays[rank] = Replay(self._graph, self._weights, whole)
        return self._replays[rank]
