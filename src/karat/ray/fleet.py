"""Fleet: the replicas of an application as the engine of AsyncLLM: it takes and gives the messages of one.

So the ingress is `karat serve` with another engine behind it. A request goes to one replica; where that is lost, the
rest of it goes to another, and nothing of that is seen above.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import fields
from dataclasses import replace as with_values
from typing import Any

import msgspec
from msgspec.structs import replace

from karat.engine.async_llm import all_of
from karat.engine.receipts.comparing import Compare
from karat.engine.receipts.verifying import ReplayCommand
from karat.engine.remote.messages import Abort, ComparisonEnded, EngineFailed, Open, Ready, Replayed, Stepped, ToEngine
from karat.engine.requests.request_updates import RequestUpdate
from karat.engine.stats import EngineStats
from karat.errors import DamageError, EngineDiedError, KaratError, packed
from karat.ray.calls import ANEW_S, LOST_S, Calls, LostError, OtherModelError
from karat.ray.held_answer import AnswerPart, HeldAnswer
from karat.ray.messages import Ask, Introduction, prefix_of
from karat.receipts.fingerprint import Computing, Fingerprint, StoredModel
from karat.request_record import Request

_MOST_IN_VAIN = 6  # replicas lost one after the other, without a token
_SHUN_S = 10.0  # for which a replica that was lost is asked last
_SHUN_OTHERS_S = 60.0  # and one of another model
OTHERS_S = 30.0  # after which an answer is given up that only replicas of another model would take
_log = logging.getLogger("karat.server")
_encode = msgspec.msgpack.Encoder().encode
_decoder: Any = msgspec.msgpack.Decoder(ToEngine)


class Replicas:
    """The source (karat.engine.remote.source) of an engine that is a fleet."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def start(self, opening: Open) -> "Fleet":
        return Fleet(self._calls)

    def fingerprints(self, stored: StoredModel) -> "TheirFingerprint":
        return TheirFingerprint(self._calls)


class TheirFingerprint:
    """The fingerprint that the replicas have found (karat.engine.remote.source.Fingerprints)."""

    damage: DamageError | None = None  # a replica's is its own, and Serve's to mend

    def __init__(self, calls: Calls) -> None:
        self._found = asyncio.run_coroutine_threadsafe(_fingerprint(calls), calls.loop)

    @property
    def known(self) -> Fingerprint | None:
        found = self._found
        return found.result() if found.done() and not found.cancelled() and found.exception() is None else None

    def begin(self) -> "Future[Fingerprint]":
        return self._found

    def wanted(self) -> "Future[Fingerprint]":
        return self._found

    def identify(self, computing: Computing, is_idle: Callable[[], bool] | None = None) -> None:
        """The replicas know it."""

    def end(self) -> None:
        self._found.cancel()


async def _fingerprint(calls: Calls) -> Fingerprint:
    return (await calls.introduction()).fingerprint


class Fleet:
    """All methods but `ready` are called in the event loop of the calls. A fleet does not die: replicas do."""

    process_id = os.getpid()

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._ours, self._theirs = socket.socketpair()  # readable while there is something to take
        self._ours.setblocking(False)
        self._updates: list[RequestUpdate] = []
        self._replayed: list[Replayed | ComparisonEnded] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._shunned: dict[str, float] = {}  # until when
        self._tally = _Tally()
        self._fingerprint = ""  # of the model, once a replica is ready

    def ready(self, progress: Callable[[int, int], None] | None) -> Ready:
        met: Introduction = asyncio.run_coroutine_threadsafe(self._calls.introduction(), self._calls.loop).result()
        self._fingerprint = met.fingerprint.short
        return met.ready

    def fileno(self) -> int:
        return self._ours.fileno()

    def take(self) -> list[Stepped | EngineFailed]:
        with suppress(BlockingIOError):
            self._ours.recv(4096)
        updates, self._updates = self._updates, []
        replayed, self._replayed = self._replayed, []
        return [Stepped(updates, self._tally.sum, [], replayed)] if updates or replayed else []

    def tell(self, command: bytes | None = None) -> bool:
        match None if command is None else _decoder.decode(command):
            case Request() as request:
                self._begin(request.request_id, self._answer(request))
            case ReplayCommand() | Compare() as asked:
                self._begin(asked.request.request_id, self._replay(asked))
            case Abort(number):
                if (task := self._tasks.get(number)) is not None:
                    task.cancel()
        return True

    def look(self, *, has_work: bool) -> EngineDiedError | None:
        return None

    def cause_of_end(self) -> EngineDiedError:
        return EngineDiedError("the application has ended; start it again")

    def close(self) -> None:
        for task in self._tasks.values():
            self._calls.loop.call_soon_threadsafe(task.cancel)
        self._ours.close()
        self._theirs.close()

    def _begin(self, number: str, work: Any) -> None:
        self._tasks[number] = task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _answer(self, request: Request) -> None:
        held = HeldAnswer(request)
        try:
            await self._follow(held, held.whole())
        except KaratError as error:
            self._say(RequestUpdate(request.request_id, (), ended=True, refused=packed(error)))

    async def _follow(self, held: HeldAnswer, part: AnswerPart) -> None:
        """Bring a part of an answer to its end, whichever replicas are lost.

        After each one that gave no token the next has twice the time to say something: perhaps the machines are busy.
        """
        lost, tried, in_vain, before = list[str](), 0, 0, held.num_tokens
        alone_since: float | None = None  # among replicas of another model
        while True:
            patience_s = LOST_S * 2 ** min(in_vain + tried, _MOST_IN_VAIN)
            try:
                await self._follow_at_one(held, part, lost, tried, patience_s)
                return
            except OtherModelError as error:
                now = self._calls.loop.time()
                alone_since = now if alone_since is None else alone_since
                if now - alone_since > OTHERS_S:
                    raise EngineDiedError(
                        "all replicas that answer have another model now; ask again, which the new application answers"
                    ) from None
                if error.replica in self._shunned:  # there is no other replica yet
                    await asyncio.sleep(ANEW_S)
                self._shunned[error.replica] = now + _SHUN_OTHERS_S
                continue
            except LostError as error:
                alone_since = alone_since if error.replica is None else None
                has_come, before = held.num_tokens > before, held.num_tokens
                _log.warning("replica %s is lost after %d tokens: %s", error.replica or "?", before, error)
                if error.replica is None:
                    tried += 1  # perhaps there is none yet: then there is no end to waiting
                else:
                    in_vain = 1 if has_come else in_vain + 1
                    lost.append(error.replica)
                    self._shunned[error.replica] = self._calls.loop.time() + _SHUN_S
                if in_vain > _MOST_IN_VAIN:
                    said = f"{in_vain} replicas died or said nothing, one after the other; {error}"
                    raise EngineDiedError(said) from None
            rest = held.rest(part)
            if len(rest) != 1:
                await all_of(self._follow(held, each) for each in rest)
                return
            part = rest[0]

    async def _follow_at_one(
        self, held: HeldAnswer, part: AnswerPart, lost: list[str], tried: int, patience_s: float
    ) -> None:
        """LostError unless the part comes to its end."""
        request = replace(part.request, request_id=secrets.token_hex(8))  # two parts may come to one replica
        ask, replica = self._ask(request, _encode(request), lost, tried), None
        try:
            async with aclosing(self._calls.answer(ask, patience_s)) as telling:
                async for told in telling:
                    if replica is None:
                        replica = told.replica
                        self._require_same(told.fingerprint, replica)
                        self._tally.begin(replica)
                    self._tally.note(replica, told.stats)
                    for update in told.updates:
                        if (made := held.take(part, update)) is not None:
                            self._say(made)
        finally:
            if replica is not None:
                self._tally.end(replica)
        if held.rest(part) and not held.has_ended:
            raise LostError(replica, "it ended the answer before its end")

    async def _replay(self, asked: ReplayCommand | Compare) -> None:
        number = asked.request.request_id
        try:
            found = await self._calls.replay(self._ask(asked.request, _encode(asked), [], 0))
            self._replayed.append(replace(found, request_id=number))
        except KaratError as error:
            self._replayed.append(ComparisonEnded(number, None, packed(error)))
        self._stir()

    def _ask(self, request: Request, command: bytes, lost: list[str], tried: int) -> Ask:
        now, ids = self._calls.loop.time(), request.prompt_token_ids
        self._shunned = {name: until for name, until in self._shunned.items() if until > now}
        prefix = prefix_of(ids, request.salt) if request.shares else b""
        avoid = tuple({*lost, *self._shunned})
        return Ask(prefix, len(ids), msgspec.Raw(command), avoid, tried, self._fingerprint)

    def _require_same(self, fingerprint: str, replica: str) -> None:
        """OtherModelError where it is: that replica's tokens are no part of an answer that is begun here."""
        if fingerprint != self._fingerprint:
            raise OtherModelError(replica, f"its model is another: {fingerprint}, not {self._fingerprint}")

    def _say(self, update: RequestUpdate) -> None:
        self._updates.append(update)
        self._stir()

    def _stir(self) -> None:
        with suppress(BlockingIOError, OSError):  # full: there is something to take
            self._theirs.send(b"\0", socket.MSG_DONTWAIT)


class _Tally:
    """The counters of all replicas together, as they were when the ingress last heard of each.

    A replica without a stream from here counts as one that does nothing.
    """

    def __init__(self) -> None:
        self._stats: dict[str, EngineStats] = {}
        self._num_open: Counter[str] = Counter()

    def begin(self, replica: str) -> None:
        self._num_open[replica] += 1

    def note(self, replica: str, stats: EngineStats) -> None:
        self._stats[replica] = stats

    def end(self, replica: str) -> None:
        self._num_open[replica] -= 1
        if self._num_open[replica] == 0 and replica in self._stats:
            idle = with_values(self._stats[replica], num_running=0, num_waiting=0, num_blocks_used=0)
            self._stats[replica] = idle

    @property
    def sum(self) -> EngineStats:
        counted = list(self._stats.values()) or [EngineStats(num_blocks=0)]
        return EngineStats(
            **{field.name: sum(getattr(each, field.name) for each in counted) for field in fields(EngineStats)}
        )
