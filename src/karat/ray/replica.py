"""Replica: Serve's deployment with an engine. It computes requests that are ready to be computed, and knows no HTTP."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import msgspec
from msgspec.structs import replace
from ray import serve

from karat.engine.async_llm import AsyncLLM
from karat.engine.requests.request_updates import RequestUpdate
from karat.errors import EngineDiedError, KaratError, UsageError, packed
from karat.outputs import RequestOutput
from karat.ray.arguments import Arguments, read_arguments
from karat.ray.messages import Ask, Command, Greeting, Introduction, Told, decoded
from karat.ray.placement import stay
from karat.ray.router import CACHE_TOKENS
from karat.ray.scaling import QUEUED_TOKENS
from karat.request_record import Request

BEAT_S = 0.25  # a stream says something at least that often
_PAUSE_S = 0.04  # between two messages of a stream, which cost a millisecond each: what comes meanwhile is one
_encode = msgspec.msgpack.Encoder().encode


class Replica:
    """`arguments` is an encoded Arguments. Serve asks check_health and the record_ methods."""

    async def __init__(self, arguments: bytes) -> None:  # type: ignore[misc]  # Serve awaits it
        given: Arguments = read_arguments(arguments)
        self._arguments = arguments
        context = serve.get_replica_context()
        self._cpus = None if given.cores is None else stay(given.cores)
        self._llm = await AsyncLLM.open(given.model, max_queue=given.max_queue, **given.engine_options())
        self._name: str = context.replica_id.unique_id
        self._num_queued_tokens = 0
        self._fingerprint = await self._llm.fingerprint()  # an answer may go on here that another replica has begun

    async def introduce(self, message: bytes) -> bytes:
        """The Introduction for a Greeting in an Ask; nothing where that is for other replicas.

        There are some of both while an application is deployed with other arguments.
        """
        greeting = decoded(Greeting, decoded(Ask, message).command)
        if greeting.arguments != self._arguments:
            return b""
        return _encode(Introduction(self._llm.ready, self._fingerprint))

    async def replay(self, message: bytes) -> bytes:
        """What the engine finds for a ReplayCommand or Compare in an Ask: Replayed or ComparisonEnded. Nothing where
        its model is another.
        """
        ask = decoded(Ask, message)
        if ask.fingerprint != self._fingerprint.short:
            return b""
        command = decoded(Command, ask.command)
        assert not isinstance(command, Request), "a request is answered"
        return _encode(await self._llm.replay(command))

    async def answer(self, message: bytes) -> AsyncGenerator[bytes, None]:
        """The answer to the Request in an Ask: one Told at once, then what comes, and signs of life.

        The last one has the end. Raises where the engine died: then the rest is to be had elsewhere.
        """
        request = decoded(Command, decoded(Ask, message).command)
        assert isinstance(request, Request), "an answer is of a request"
        kept, stirred = list[RequestUpdate](), asyncio.Event()
        num_queued = len(request.prompt_token_ids)

        def see(update: RequestUpdate) -> None:
            nonlocal num_queued
            if update.chunks:
                self._num_queued_tokens -= num_queued
                num_queued = 0
            kept.append(replace(update, output=None))
            stirred.set()

        yield await self._told([])
        self._num_queued_tokens += num_queued
        following = asyncio.create_task(self._llm.follow(replace(request, receipt=False), see))
        following.add_done_callback(lambda _: stirred.set())
        try:
            has_ended = False
            while not has_ended:
                with suppress(TimeoutError):
                    async with asyncio.timeout(BEAT_S):
                        await stirred.wait()
                stirred.clear()
                has_ended = following.done()
                updates, kept[:] = [*kept, *_refusal(following)], []
                yield await self._told(updates)
                await asyncio.sleep(0 if has_ended else _PAUSE_S)
        finally:
            self._num_queued_tokens -= num_queued
            following.cancel()
            with suppress(BaseException):
                await following

    async def check_health(self) -> None:
        """Serve starts another replica in place of one whose engine died."""
        if self._llm.failure is not None:
            raise self._llm.failure

    def record_routing_stats(self) -> dict[str, int]:
        sizes = self._llm.ready.sizes
        return {CACHE_TOKENS: sizes.num_blocks * sizes.block_size}

    def record_autoscaling_stats(self) -> dict[str, float]:
        return {QUEUED_TOKENS: self._num_queued_tokens}

    async def _told(self, updates: list[RequestUpdate]) -> bytes:
        return _encode(Told(self._name, self._fingerprint.short, updates, await self._llm.stats()))


def _refusal(following: "asyncio.Task[RequestOutput]") -> list[RequestUpdate]:
    """The error of a request that is its own fault. Any other is raised."""
    if not following.done() or (error := following.exception()) is None:
        return []
    if isinstance(error, KaratError) and not isinstance(error, EngineDiedError | UsageError):
        return [RequestUpdate("", (), ended=True, refused=packed(error))]
    raise error
