"""ParallelModel: a model on several ranks, as the engine sees it: a function from batches to logits."""

import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec
import numpy as np

from karat.batch import ForwardBatch
from karat.checkpoint import ModelCheckpoint
from karat.checkpoint.overrides import without_texts
from karat.config import FLOAT_BYTES, FloatName, ModelConfig
from karat.engine.engine_config import EngineConfig
from karat.engine.ranks.messages import LoadRank, RankDone, RankFailed, RankLoaded, Step
from karat.errors import BugError, KaratError, RankError, unpacked
from karat.machine.cores import num_physical_cores
from karat.machine.memory import available_bytes
from karat.ops.executor import Pending, Rows, Runner
from karat.ranks.placement import cores_of_ranks
from karat.ranks.processes import PATIENCE, Patience, Ranks
from karat.ranks.shared_memory import RankTally, StepWatcher, create_file, make_room

_log = logging.getLogger(__name__)

STEP = PATIENCE
# A network file system may keep a rank waiting, and quantising a large matrix takes long without progress.
LOADING = Patience(idle_s=30.0, behind_s=600.0, vain_s=600.0)
_HEADER_BYTES = 64  # in front of an array that is exchanged through the host

Answer = TypeVar("Answer", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Holding:
    """A rank's bytes read from files, threads, and CPUs that it is pinned to (empty: the system chooses)."""

    bytes_read: int
    threads: int
    cpus: tuple[int, ...]


class ParallelModel(Runner):
    """`size` processes that load a model with `load`, each its part. It is then a Runner.

    `load` may be called again, for another model. The processes run `module` and end with `close`, with this object or
    with this process. Raises RankError, CapacityError for lack of shared memory, and ExecutorError without the C++
    extension.
    """

    def __init__(self, size: int, module: str = "karat.engine.ranks.rank") -> None:
        self.size = size
        self.holdings: list[Holding] = []
        self._watcher: StepWatcher | None = None
        self._vocab_size, self._dtype = 0, np.dtype(np.float32)
        self._file = create_file()
        try:
            self._ranks = Ranks(module, size, [self._file])
        except BaseException:
            os.close(self._file)
            raise
        self._end = weakref.finalize(self, _close, self._ranks, self._file)

    @property
    def process_ids(self) -> tuple[int, ...]:
        return self._ranks.process_ids

    def load(self, load: LoadRank, config: ModelConfig, progress: Callable[[int], None] = lambda done: None) -> None:
        """Load the model, each rank its part. Threads (None: a share of the cores), cores and memory are decided here.

        `progress` is called several times, and at the end, with the bytes that all ranks together have read. Errors of
        loading pass through; the ranks stay and can load again.
        """
        item = FLOAT_BYTES[load.dtype]
        slot_bytes = max(load.limits.num_tokens, load.limits.num_logit_rows) * config.hidden_size * item + _HEADER_BYTES
        whole_bytes = load.limits.num_logit_rows * config.vocab_size * item
        threads = load.options.get("threads") or max(1, num_physical_cores() // self.size)
        placed = cores_of_ranks(self.size, threads)
        cpus: list[tuple[int, ...]] = [tuple(sorted(own)) for own in placed] if placed else [()] * self.size
        self._watcher = None
        make_room(self._file, self.size, slot_bytes=slot_bytes, whole_bytes=whole_bytes, available=available_bytes())
        watcher = StepWatcher(self._file, self.size, slot_bytes=slot_bytes, whole_bytes=whole_bytes)
        options = {**load.options, "threads": threads}
        loads = [
            msgspec.structs.replace(load, options=options, slot_bytes=slot_bytes, whole_bytes=whole_bytes, cpus=own)
            for own in cpus
        ]
        tally = RankTally(self._file)
        replies = self._exchange(loads, RankLoaded, watcher, patience=LOADING, on_look=lambda: progress(tally.total()))
        progress(tally.total())
        self._watcher = watcher
        self._vocab_size, self._dtype = config.vocab_size, np.dtype(load.dtype)
        self.holdings = [Holding(reply.bytes_read, threads, own) for reply, own in zip(replies, cpus, strict=True)]
        for warning in dict.fromkeys(warning for reply in replies for warning in reply.warnings):
            _log.warning("%s", warning)

    def submit(self, batch: ForwardBatch) -> Pending:
        return Pending(lambda: self._compute(batch))

    def _compute(self, batch: ForwardBatch) -> Rows:
        numbers = batch.flat.tobytes()
        self.command(lambda number: Step(number=number, batch=numbers), RankDone)
        assert self._watcher is not None
        return self._watcher.whole((len(batch.logit_rows), self._vocab_size), self._dtype)

    def command(self, make: Callable[[int], msgspec.Struct], answer: type[Answer], num_steps: int = 1) -> list[Answer]:
        """Send all ranks the command `make(number)` and return their answers; `number` is that of its first collective.

        The command takes at most `num_steps` steps. If a rank fails, the others give up, and its error is raised.
        """
        assert self._watcher is not None, "nothing is loaded"
        number = self._watcher.next_number(num_steps)
        return self._exchange([make(number)] * self.size, answer, self._watcher, number)

    def check(self) -> None:
        """If a rank has ended since the last step, end the others and raise RankError."""
        self._ranks.check()

    def close(self) -> None:
        """End the ranks. May be called again."""
        self._end()

    def _exchange(
        self,
        commands: Sequence[msgspec.Struct],
        answer: type[Answer],
        watcher: StepWatcher,
        number: int = 0,
        patience: Patience | None = None,
        on_look: Callable[[], None] = lambda: None,
    ) -> list[Answer]:
        decoder = _decoder(answer)

        def give_up(reply: bytes) -> None:
            if number and isinstance(decoder.decode(reply), RankFailed):
                watcher.abandon(number)

        last, encoded = None, []
        for command in commands:
            encoded.append(encoded[-1] if command is last else msgspec.msgpack.encode(command))
            last = command
        replies = self._ranks.exchange(
            encoded, signs=watcher, patience=patience or STEP, on_reply=give_up, on_look=on_look
        )
        decoded = [decoder.decode(reply) for reply in replies]
        failures = [(rank, reply) for rank, reply in enumerate(decoded) if isinstance(reply, RankFailed)]
        if failures:
            rank, failure = min(failures, key=lambda failed: (failed[1].abandoned, failed[0]))
            raise _raised(rank, failure, of_all=len({failed.error for _, failed in failures}) == 1 < len(failures))
        return decoded


@cache
def _decoder(answer: type[msgspec.Struct]) -> Any:
    """The decoder of replies that are an `answer` or Failed."""
    return msgspec.msgpack.Decoder(answer | RankFailed)


def load_command(
    checkpoint: ModelCheckpoint,
    sizes: EngineConfig,
    *,
    executor: str,
    kv_dtype: FloatName,
    options: Mapping[str, Any],
    dtype: FloatName = "float32",
    quantize: str | None = None,
    guard: bool = False,
) -> LoadRank:
    """The command that makes ranks load a model for an engine of these sizes; `options` are those of the executor."""
    return LoadRank(
        path=str(checkpoint.path.absolute()),
        overrides=without_texts(checkpoint.overrides),
        executor=executor,
        dtype=dtype,
        options=dict(options),
        kv_dtype=kv_dtype,
        quantize=quantize,
        guard=guard,
        num_positions=sizes.max_model_len,
        num_blocks=sizes.group_blocks,
        block_size=sizes.block_size,
        num_states=sizes.num_state_slots,
        limits=sizes.step_limits,
    )


def _close(ranks: Ranks, file: int) -> None:
    ranks.close()
    os.close(file)


def _raised(rank: int, failure: RankFailed, *, of_all: bool) -> KaratError:
    """The error that a rank reported, of its own class; RankError for a bug."""
    kind, text, param = failure.error
    if kind == BugError.__name__:
        return RankError(f"rank {rank}: {text}")
    return unpacked(kind, text if of_all else f"rank {rank}: {text}", param)
