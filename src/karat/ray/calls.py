"""Calls: what the ingress asks of its replicas, through the handle that Serve gives. It notices who is lost."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec.structs import replace
from ray.exceptions import RayTaskError

from karat.engine.remote.messages import ComparisonEnded, Replayed
from karat.errors import EngineDiedError, KaratError
from karat.ray.messages import Ask, Greeting, Introduction, Told, decoded

LOST_S = 1.0  # without a word from a replica, which says one every BEAT_S seconds
ANEW_S = 0.25  # before a call of a whole application's is made again
_encode = msgspec.msgpack.Encoder().encode


class LostError(Exception):
    """A replica that died, or says nothing. `replica` is its name, None where it had said nothing at all."""

    def __init__(self, replica: str | None, why: str) -> None:
        super().__init__(why)
        self.replica = replica


class OtherModelError(LostError):
    """A replica of another model. There are such while an application is deployed with another model."""

    replica: str


class Calls:
    """`handle` is Serve's handle of the replicas, which have these arguments, encoded. To be made in the event loop
    that the calls are made in.
    """

    def __init__(self, handle: Any, arguments: bytes) -> None:
        self.loop = asyncio.get_running_loop()
        self._handle = handle
        self._answer = handle.options(method_name="answer", stream=True)
        self._greeting = Ask(b"", 0, msgspec.Raw(_encode(Greeting(arguments))))

    async def introduction(self) -> Introduction:
        """Of the first replica with these arguments. Waits for one. Errors of loading are Serve's to say."""
        made: Introduction = decoded(Introduction, await self._from_any("introduce", self._greeting))
        return made

    async def replay(self, ask: Ask) -> Replayed | ComparisonEnded:
        """What an engine of this model finds. Errors of the engine's are raised."""
        made: Replayed | ComparisonEnded = decoded(Replayed | ComparisonEnded, await self._from_any("replay", ask))
        return made

    async def answer(self, ask: Ask, lost_s: float = LOST_S) -> AsyncGenerator[Told, None]:
        """What a replica says, to its end. LostError as soon as it is lost, at the latest after `lost_s` seconds
        without a word. Where nobody listens any more, it ends.
        """
        response, replica, has_ended = self._answer.remote(_encode(ask)), None, False
        try:
            while True:
                try:
                    async with asyncio.timeout(lost_s):
                        told = decoded(Told, await anext(response))
                except StopAsyncIteration:
                    has_ended = True
                    return
                except TimeoutError:
                    raise LostError(replica, f"nothing came for {lost_s:g} s") from None
                except asyncio.CancelledError:
                    if (task := asyncio.current_task()) is None or task.cancelling():
                        raise
                    raise LostError(replica, "it was told to end") from None  # by Serve, which ends the replica
                except Exception as fault:  # whatever it is, nothing more comes from there
                    has_ended = True
                    raise LostError(replica, _said(fault)) from fault
                replica = told.replica
                yield told
        finally:
            if not has_ended:
                response.cancel()

    async def _from_any(self, method: str, ask: Ask) -> bytes:
        """The result of a call, from another replica where one is lost or has nothing to say."""
        call = self._handle.options(method_name=method)
        for tried in itertools.count(ask.tried):
            try:
                if said := bytes(await call.remote(_encode(replace(ask, tried=tried)))):
                    return said
            except RayTaskError as fault:
                if isinstance(fault.cause, KaratError) and not isinstance(fault.cause, EngineDiedError):
                    raise fault.cause from None
            except asyncio.CancelledError:
                raise
            except Exception:  # noqa: BLE001 - of Ray's: it died, or is not there
                pass
            await asyncio.sleep(ANEW_S)
        raise AssertionError("there is no last try")


def _said(fault: Exception) -> str:
    """The first line of an error of Ray's, whose texts have many."""
    return f"{type(fault).__name__}: {str(fault).strip().partition(chr(10))[0][:200]}"
