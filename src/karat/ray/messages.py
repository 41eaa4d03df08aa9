"""Messages between an application's ingress and its replicas: bytes of Karat's own, none of it pickled."""

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from karat.engine.receipts.comparing import Compare
from karat.engine.receipts.verifying import ReplayCommand
from karat.engine.remote.messages import ComparisonEnded, Ready, Replayed
from karat.engine.requests.request_updates import RequestUpdate
from karat.engine.stats import EngineStats
from karat.receipts.fingerprint import Fingerprint
from karat.request_record import Request

PREFIX_BLOCK = 64  # tokens
_DIGEST = 8  # bytes of a block of tokens and of all before it
T = TypeVar("T")


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A command on its way to whichever replica the router takes.

    `prefix` has a digest for each block of PREFIX_BLOCK tokens of the prompt and all before it. `num_tokens` are those
    of the prompt. `avoid` names replicas that were lost, and `tried` counts those that had nothing to say. The router
    leaves the command as it is. `fingerprint` is that of the model which is meant, in short.
    """

    prefix: bytes
    num_tokens: int
    command: msgspec.Raw
    avoid: tuple[str, ...] = ()
    tried: int = 0
    fingerprint: str = ""

    @property
    def blocks(self) -> list[bytes]:
        return [self.prefix[start : start + _DIGEST] for start in range(0, len(self.prefix), _DIGEST)]


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a replica says of a request: what is new of it, nothing where this is a sign of life, or the first one.

    `fingerprint` is that of its model, in short.
    """

    replica: str
    fingerprint: str
    updates: list[RequestUpdate]
    stats: EngineStats


class Greeting(msgspec.Struct, frozen=True, array_like=True):
    """The command of an ingress that starts: the arguments, encoded, of the replicas that it is for."""

    arguments: bytes


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """A replica's answer to a Greeting."""

    ready: Ready
    fingerprint: Fingerprint


Command = Request | ReplayCommand | Compare
_KINDS: tuple[Any, ...] = (Ask, Told, Command, Greeting, Introduction, Replayed | ComparisonEnded)
_DECODERS: dict[Any, Any] = {kind: msgspec.msgpack.Decoder(kind) for kind in _KINDS}


def decoded(kind: Any, message: bytes | msgspec.Raw) -> Any:
    """The message, of this kind."""
    return _DECODERS[kind].decode(message)


def prefix_of(token_ids: Sequence[int], salt: str | None) -> bytes:
    """The digests of the whole blocks of a prompt. Prompts of different `salt` share none."""
    ids, before, made = np.asarray(token_ids, dtype="<u4"), (salt or "").encode(), []
    for end in range(PREFIX_BLOCK, len(ids) + 1, PREFIX_BLOCK):
        before = hashlib.blake2b(before + ids[end - PREFIX_BLOCK : end].tobytes(), digest_size=_DIGEST).digest()
        made.append(before)
    return b"".join(made)
