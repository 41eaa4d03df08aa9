"""Requests to a peer in its own process, and its answers: typed messages (msgspec)."""

from typing import Any

import msgspec

from karat.bench.sides import Sample
from karat.errors import Packed


class Prefill(msgspec.Struct, frozen=True, tag=True):
    """Answered by Samples, one."""

    prompt: list[int]


class Start(msgspec.Struct, frozen=True, tag=True):
    """Answered by Samples, none."""

    prompts: list[list[int]]
    num_steps: int


class DecodeSteps(msgspec.Struct, frozen=True, tag=True):
    """Answered by Samples, `count`."""

    count: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Answered by Samples, none."""


class Logits(msgspec.Struct, frozen=True, tag=True):
    """Answered by Row."""

    prompt: list[int]


class Close(msgspec.Struct, frozen=True, tag=True):
    """Not answered: the process ends."""


class PeerLoaded(msgspec.Struct, frozen=True, tag=True):
    """The peer is ready: the first message."""

    name: str
    version: str
    details: dict[str, Any]


class Samples(msgspec.Struct, frozen=True, tag=True):
    samples: list[Sample]


class LogitsRow(msgspec.Struct, frozen=True, tag=True):
    """Logits [vocab], float32; None if the peer shows none."""

    values: bytes | None


class PeerFailed(msgspec.Struct, frozen=True, tag=True):
    error: Packed


Command = Prefill | Start | DecodeSteps | Stop | Logits | Close
Reply = PeerLoaded | Samples | LogitsRow | PeerFailed
