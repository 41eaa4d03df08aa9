"""One measurement of a server, or of two in turns: each load cold, and warm if asked for; the result as JSON has it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from karat.bench.load.asking import AskedRecord, Manner
from karat.bench.load.prompts import PlannedConversation, Supply
from karat.bench.load.servers import MeasuredServer
from karat.bench.load.summary import Goals, figures, ratios
from karat.bench.load.traffic import Run, Traffic, run

SCHEMA = 1  # of the JSON; raised when a key changes its meaning or is removed


class TrafficWatcher(Protocol):
    """Who shows how far a measurement is."""

    def begin(self, text: str, number: int) -> None:
        """A run of `number` requests begins."""

    def ended(self, record: AskedRecord) -> None:
        """One of them ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPlan:
    """What to measure: each of `loads` in `repeat` turns, with `num_requests` conversations a turn (None: four for each
    that runs at a time, but at least 32), after `warmup` conversations that do not count. With `warm`, each turn is
    followed by the same conversations again.

    sweep: afterwards as many rates, evenly up to the conversations a second that the first server reached under the
    last of `loads`.
    """

    loads: Sequence[Traffic]
    num_requests: int | None = None
    repeat: int = 1
    warmup: int = 1
    warm: bool = False
    sweep: int = 0
    goals: Goals = field(default_factory=Goals)
    timeout_s: float = 600

    def number(self, load: Traffic) -> int:
        return self.num_requests or max(32, 4 * (load.concurrency or 0))


def measure(
    plan: TrafficPlan,
    servers: Sequence[MeasuredServer],
    manners: Mapping[str, Manner],
    supply: Supply,
    rng: np.random.Generator,
    watcher: TrafficWatcher,
) -> list[dict[str, Any]]:
    """The points, one for each load. In a turn all servers get the same conversations, in turns, at the same times."""
    session = _LoadSession(plan, servers, manners, supply, rng, watcher)
    session.warm_up()
    points = [session.point(load) for load in plan.loads]
    if plan.sweep:
        reached = points[-1]["cold"][servers[0].name]["conversations_per_s"]
        if reached:
            points += [session.point(Traffic(rate=reached * (i + 1) / plan.sweep)) for i in range(plan.sweep)]
    return points


class _LoadSession:
    def __init__(
        self,
        plan: TrafficPlan,
        servers: Sequence[MeasuredServer],
        manners: Mapping[str, Manner],
        supply: Supply,
        rng: np.random.Generator,
        watcher: TrafficWatcher,
    ) -> None:
        self._plan, self._servers, self._manners = plan, servers, manners
        self._supply, self._rng, self._watcher = supply, rng, watcher

    def warm_up(self) -> None:
        if self._plan.warmup:
            for server in self._servers:
                asked = self._supply.take(self._plan.warmup)
                self._run(server, asked, Traffic(concurrency=1), f"{server.name}, warming up", 0)

    def point(self, load: Traffic) -> dict[str, Any]:
        plan = self._plan
        names = [server.name for server in self._servers]
        runs: dict[str, dict[str, list[Run]]] = {kind: {name: [] for name in names} for kind in ("cold", "warm")}
        for turn in range(plan.repeat):
            asked = self._supply.take(plan.number(load))
            gaps = int(self._rng.integers(2**63))  # the seed of the times, the same for both servers
            for server in self._servers[:: 1 if turn % 2 == 0 else -1]:
                for kind in ("cold", "warm") if plan.warm else ("cold",):
                    text = f"{server.name}, {load}, {kind}, turn {turn + 1} of {plan.repeat}"
                    runs[kind][server.name].append(self._run(server, asked, load, text, gaps))
        point: dict[str, Any] = {"concurrency": load.concurrency, "rate": load.rate, "turns": plan.repeat}
        for kind in ("cold", "warm"):
            found = runs[kind] if kind == "cold" or plan.warm else None
            point[kind] = found and {name: figures(of, plan.goals) for name, of in found.items()}
            if found and len(names) == 2:
                turns = [[figures([one], plan.goals) for one in found[name]] for name in names]
                point[f"{kind}_ratios"] = ratios(list(zip(*turns, strict=True)))
        return point

    def _run(
        self, server: MeasuredServer, asked: Sequence[PlannedConversation], load: Traffic, text: str, gaps: int
    ) -> Run:
        self._watcher.begin(text, sum(len(conversation.turns) for conversation in asked))
        with server.awake():
            return asyncio.run(self._asked(server, asked, load, np.random.default_rng(gaps), self._watcher.ended))

    async def _asked(
        self,
        server: MeasuredServer,
        asked: Sequence[PlannedConversation],
        load: Traffic,
        rng: np.random.Generator,
        on_end: Callable[[AskedRecord], None],
    ) -> Run:
        client = server.client(self._plan.timeout_s)
        try:
            return await run(client, self._manners[server.name], asked, load, rng, on_end)
        finally:
            await client.close()
