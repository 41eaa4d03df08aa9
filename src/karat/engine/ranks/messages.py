"""Commands to a rank and its answers: typed messages (msgspec), never pickle."""

from typing import Any

import msgspec

from karat.checkpoint.overrides import Overrides
from karat.config import FloatName
from karat.errors import Packed
from karat.ops.executor import StepLimits


class LoadRank(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Load this rank's part of the model at `path` and make its cache. The first command, answered by Loaded.

    `overrides` are what the user says of the model itself, `options` those of the executor. `slot_bytes` and
    `whole_bytes` are sizes of the group's shared memory. `cpus` are the CPUs that the rank may run on; empty means all.
    """

    path: str
    overrides: Overrides
    executor: str
    dtype: FloatName
    options: dict[str, Any]
    kv_dtype: FloatName
    quantize: str | None
    guard: bool
    num_positions: int
    num_blocks: tuple[int, ...]  # by cache group
    block_size: int
    num_states: int  # slots
    limits: StepLimits
    slot_bytes: int = 0
    whole_bytes: int = 0
    cpus: tuple[int, ...] = ()


class RankLoaded(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The model is loaded. `bytes_read` is the number of bytes read from files; `warnings` are for the user."""

    bytes_read: int
    warnings: tuple[str, ...]


class Step(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Compute a batch, given as the bytes of its numbers (karat.batch.ForwardBatch.flat). Answered by Done."""

    number: int
    batch: bytes


class RankDone(msgspec.Struct, frozen=True, tag=True):
    """The command is done; its results are in shared memory."""


class RankFailed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The command ended with an error. `abandoned`: it ended only because another rank failed."""

    error: Packed
    abandoned: bool = False
