"""PrefixRouter: Serve's router for replicas of Karat: a conversation goes where most of its beginning is in the cache.

What a replica has in its cache is what was sent there, as far as its cache holds that. Nothing is asked of replicas. A
wrong guess costs the time of a prompt, and never changes an answer.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from karat.ray.messages import PREFIX_BLOCK, Ask, decoded

CACHE_TOKENS = "cache_tokens"  # of a replica's routing statistics
SLACK_TOKENS = 8192
_USUAL_CACHE = 65536  # tokens, until a replica has stated its own
_CHOSEN_S = 5.0  # for which a request counts where it is meant to go, unless that is known sooner


class Prefixes:
    """What was sent to which replica, and how much of it is still open. Replicas are known by their names.

    A replica is passed over for its cache where the prompts that are open there have more than `slack_tokens` tokens
    beyond those of the replica that has the least.
    """

    def __init__(self, slack_tokens: int) -> None:
        self._slack = slack_tokens
        self._blocks: dict[str, OrderedDict[bytes, None]] = {}  # the latest ones last
        self._open: dict[str, tuple[str, int]] = {}  # of each request: replica, tokens
        self._load: dict[str, int] = {}
        self._chosen: dict[str, tuple[str, int, float]] = {}  # of each request: replica, tokens, until when

    def ranked(self, names: Iterable[str], ask: Ask | None, now: float = 0.0) -> list[str]:
        """The replicas, the best one first: none that was lost, none with too much to do, most of the beginning."""
        names = list(names)
        loads = Counter({name: self._load.get(name, 0) for name in names})
        self._chosen = {request: chosen for request, chosen in self._chosen.items() if chosen[2] > now}
        for name, num_tokens, _ in self._chosen.values():
            loads[name] += num_tokens
        least = min((loads[name] for name in names), default=0)
        blocks = [] if ask is None else ask.blocks

        def order(name: str) -> tuple[bool, bool, int, int]:
            lost = ask is not None and name in ask.avoid
            return lost, loads[name] > least + self._slack, -self._num_held(name, blocks), loads[name]

        found = sorted(names, key=order)
        turn = 0 if ask is None or not found else ask.tried % len(found)
        return found[turn:] + found[:turn]

    def chosen(self, request: str, name: str, ask: Ask, now: float) -> None:
        """A request is on its way to this replica. Others that come before it has arrived count it, too."""
        self._chosen[request] = name, ask.num_tokens, now + _CHOSEN_S

    def routed(self, request: str, name: str, ask: Ask, cache_tokens: int) -> None:
        """A request was taken by this replica, whose cache has so many tokens."""
        self._chosen.pop(request, None)
        held: OrderedDict[bytes, None] = self._blocks.setdefault(name, OrderedDict())
        for block in ask.blocks:
            held[block] = None
            held.move_to_end(block)
        while len(held) > cache_tokens // PREFIX_BLOCK:
            held.popitem(last=False)
        self._open[request] = name, ask.num_tokens
        self._load[name] = self._load.get(name, 0) + ask.num_tokens

    def completed(self, request: str) -> None:
        """A request has ended, however it did. No effect on one that is not known."""
        self._chosen.pop(request, None)
        name, num_tokens = self._open.pop(request, ("", 0))
        if name in self._load:
            self._load[name] -= num_tokens

    def keep(self, names: Collection[str]) -> None:
        """Forget all other replicas: a cache is gone with its replica."""
        for name in [name for name in self._blocks if name not in names]:
            del self._blocks[name]
            self._load.pop(name, None)

    def _num_held(self, name: str, blocks: list[bytes]) -> int:
        """How many blocks of the beginning were sent to a replica."""
        held = self._blocks.get(name) or OrderedDict[bytes, None]()
        return next((number for number, block in enumerate(blocks) if block not in held), len(blocks))


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # which is not typed for us
    """Routes calls whose argument is an Ask; others go where the least is to do."""

    def initialize_state(self, slack_tokens: int = SLACK_TOKENS, **_: Any) -> None:
        self._prefixes = Prefixes(slack_tokens)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """A rank for each replica, so that the first one is taken unless it is full or does not answer."""
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        self._prefixes.keep(by_name)
        ask, now = None, time.monotonic()
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # where no replica takes it
            ask = _ask_of(pending_request)
        ranked = self._prefixes.ranked(by_name, ask, now)
        if ranked and pending_request is not None and ask is not None:
            self._prefixes.chosen(pending_request.metadata.internal_request_id, ranked[0], ask, now)
        return [[by_name[name]] for name in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        if (ask := _ask_of(pending_request)) is not None:
            replica = self.curr_replicas.get(replica_id)
            stated = {} if replica is None else replica.routing_stats
            request, name = pending_request.metadata.internal_request_id, replica_id.unique_id
            self._prefixes.routed(request, name, ask, int(stated.get(CACHE_TOKENS, _USUAL_CACHE)))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._prefixes.completed(internal_request_id)


def _ask_of(pending: PendingRequest) -> Ask | None:
    made: Ask | None = decoded(Ask, pending.args[0]) if pending.args else None
    return made
