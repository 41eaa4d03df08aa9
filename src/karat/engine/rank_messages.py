"""Commands to a rank and its answers: typed messages (msgspec), never pickle."""

import msgspec
import numpy as np

from karat.batch import ForwardBatch
from karat.checkpoint.overrides import Overrides
from karat.config import Activations, FloatName
from karat.errors import Packed
from karat.ops.executor import StepLimits


class Load(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Load this rank's part of the model at `path` and make its cache. The first command, answered by Loaded.

    `overrides` are what the user says of the model itself. `slot_bytes` and `whole_bytes` are sizes of the group's
    shared memory. `cpus` are the CPUs that the rank may run on; empty means all.
    """

    path: str
    overrides: Overrides
    executor: str
    dtype: FloatName
    activations: Activations | None
    isa: str | None
    threads: int | None
    kv_dtype: FloatName
    quantize: str | None
    guard: bool
    num_positions: int
    num_blocks: int
    block_size: int
    limits: StepLimits
    slot_bytes: int = 0
    whole_bytes: int = 0
    cpus: tuple[int, ...] = ()


class Loaded(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The model is loaded. `bytes_read` is the number of bytes read from files; `warnings` are for the user."""

    bytes_read: int
    warnings: tuple[str, ...]


class Step(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Compute a batch (karat.batch.ForwardBatch, int32 arrays as bytes). Answered by Done."""

    number: int
    token_ids: bytes
    positions: bytes
    slots: bytes
    query_starts: bytes
    context_lens: bytes
    block_tables: bytes
    logit_rows: bytes
    block_size: int

    @classmethod
    def of(cls, number: int, batch: ForwardBatch) -> "Step":
        return cls(
            number=number,
            token_ids=batch.token_ids.tobytes(),
            positions=batch.positions.tobytes(),
            slots=batch.slots.tobytes(),
            query_starts=batch.query_starts.tobytes(),
            context_lens=batch.context_lens.tobytes(),
            block_tables=batch.block_tables.tobytes(),
            logit_rows=batch.logit_rows.tobytes(),
            block_size=batch.block_size,
        )

    def batch(self) -> ForwardBatch:
        return ForwardBatch(
            token_ids=np.frombuffer(self.token_ids, np.int32),
            positions=np.frombuffer(self.positions, np.int32),
            slots=np.frombuffer(self.slots, np.int32),
            query_starts=np.frombuffer(self.query_starts, np.int32),
            context_lens=np.frombuffer(self.context_lens, np.int32),
            block_tables=np.frombuffer(self.block_tables, np.int32).reshape(len(self.context_lens) // 4, -1),
            logit_rows=np.frombuffer(self.logit_rows, np.int32),
            block_size=self.block_size,
        )


class Done(msgspec.Struct, frozen=True, tag=True):
    """The command is done; its results are in shared memory."""


class Failed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The command ended with an error. `abandoned`: it ended only because another rank failed."""

    error: Packed
    abandoned: bool = False
