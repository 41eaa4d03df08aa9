"""A model shared out over ranks, as the engine sees it: a function from batches to logits."""

import logging
import os
import weakref
from collections.abc import Sequence

import msgspec
import numpy as np

from karat import errors
from karat.batch import ForwardBatch
from karat.config import FLOAT_BYTES, ModelConfig
from karat.dist.placement import cores_of_ranks
from karat.dist.processes import Ranks
from karat.dist.shared_memory import Watcher, create_file
from karat.engine.rank_messages import Command, Failed, Load, Loaded, Reply, Step, decode_reply, encode
from karat.errors import KaratError, RankError
from karat.ops.threads import num_physical_cores

_log = logging.getLogger(__name__)

_HEADER_BYTES = 64  # before an array that is exchanged through the host


class ParallelModel:
    """`size` ranks that have loaded a model together. Calling it computes a step (a Runner); `close` ends them.

    `load` says what each loads, but for its place and memory, which are decided here. The ranks end with this object or
    this process. Raises what loading raises, CapacityError for want of shared memory, and RankError.
    """

    def __init__(self, load: Load, config: ModelConfig, size: int) -> None:
        item = FLOAT_BYTES[load.dtype]
        self._shape = config.vocab_size
        self._dtype: np.dtype[np.floating] = np.dtype(load.dtype)
        slot_bytes = max(load.max_tokens, load.max_rows) * config.hidden_size * item + _HEADER_BYTES
        whole_bytes = load.max_rows * config.vocab_size * item
        threads = load.threads or max(1, num_physical_cores() // size)
        cpus = cores_of_ranks(size, threads)
        descriptor = create_file(size, slot_bytes=slot_bytes, whole_bytes=whole_bytes)
        try:
            self._watcher = Watcher(descriptor, size, slot_bytes=slot_bytes, whole_bytes=whole_bytes)
            self._ranks = Ranks("karat.engine.rank", size, [descriptor], self._watcher.is_waiting)
        finally:
            os.close(descriptor)
        self._end = weakref.finalize(self, self._ranks.close)
        try:
            loads = [
                msgspec.structs.replace(
                    load, threads=threads, slot_bytes=slot_bytes, whole_bytes=whole_bytes,
                    cpus=tuple(sorted(cpus[rank])) if cpus else (),
                )
                for rank in range(size)
            ]  # fmt: skip
            replies = self._command(loads, watch_progress=False)
        except BaseException:
            self.close()
            raise
        self.threads = threads
        self.loaded = [reply for reply in replies if isinstance(reply, Loaded)]
        for warning in dict.fromkeys(warning for reply in self.loaded for warning in reply.warnings):
            _log.warning("%s", warning)

    @property
    def process_ids(self) -> tuple[int, ...]:
        return self._ranks.process_ids

    def __call__(self, batch: ForwardBatch) -> "np.ndarray[tuple[int, int], np.dtype[np.floating]]":
        """Logits [rows, vocab] of the batch's logit_rows, good until the next call."""
        number = self._watcher.next_number()
        self._command([Step.of(number, batch)] * self._ranks.size, number=number)
        return self._watcher.whole((len(batch.logit_rows), self._shape), self._dtype)

    def close(self) -> None:
        """End the ranks. May be called again."""
        self._end()

    def _command(
        self, commands: Sequence[Command], *, number: int | None = None, watch_progress: bool = True
    ) -> list[Reply]:
        """Every rank's reply. Where one failed the step is given up on the others, and its error raised here."""

        def give_up(rank: int, message: bytes) -> None:
            if number is not None and isinstance(decode_reply(message), Failed):
                self._watcher.abandon(number)

        encoded = [encode(command) for command in commands]
        replies = [
            decode_reply(reply)
            for reply in self._ranks.exchange(encoded, watch_progress=watch_progress, on_reply=give_up)
        ]
        failures = [(rank, reply) for rank, reply in enumerate(replies) if isinstance(reply, Failed)]
        if failures:
            rank, failure = min(failures, key=lambda failed: (failed[1].abandoned, failed[0]))
            raise _raised(rank, failure, of_all=len(failures) == len(replies))
        return replies


def _raised(rank: int, failure: Failed, *, of_all: bool) -> KaratError:
    """The error that a rank reported, of its own class."""
    kind = getattr(errors, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, KaratError)):
        return RankError(f"rank {rank}: {failure.message}")
    return kind(failure.message if of_all else f"rank {rank}: {failure.message}")
