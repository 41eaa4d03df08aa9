"""The engine: requests in, tokens and text out, step by step."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from karat.engine.choosing.bad_words import words_of
from karat.engine.choosing.choice import Choice
from karat.engine.choosing.logits_readers import LogitsReader, LogitsTarget, Reader
from karat.engine.choosing.replay_reader import ReplayReader
from karat.engine.engine_config import EngineConfig
from karat.engine.requests.admission import Admission
from karat.engine.requests.grammar_cache import GrammarCache
from karat.engine.requests.request_updates import OpenEntry, PromptProgress, RequestUpdate
from karat.engine.scheduling.batch_building import build_batch
from karat.engine.scheduling.scheduler import Chunk, Scheduler, work_of
from karat.engine.scheduling.sequence import Sequence
from karat.engine.scheduling.step_budget import BESIDE_STEP_S, UNBOUNDED, Pace, StepBudget, pause_after
from karat.engine.stats import EngineStats
from karat.errors import KaratError, NumericsError, RequestError
from karat.kv.blocks import BlockPool
from karat.ops.executor import Pending, Rows, Runner
from karat.request import MAX_COUNT
from karat.request_record import Request
from karat.text import Tokenizer

if TYPE_CHECKING:
    from karat.text.grammar import Grammar

_log = logging.getLogger(__name__)

AnyReader = TypeVar("AnyReader", LogitsReader, ReplayReader)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A submitted step: its chunks with the rows of logits and the work that they are, and when it began."""

    chunks: list[Chunk]
    num_rows: list[int]
    pending: Pending
    begun: float
    decoded: float
    prefilled: float

    @property
    def is_beside(self) -> bool:
        """Whether it has work beside requests."""
        return any(chunk.seq.is_beside for chunk in self.chunks)

    @property
    def seq_ids(self) -> frozenset[int]:
        return frozenset(chunk.seq.seq_id for chunk in self.chunks)


class Engine:
    """Continuous batching over one model. Not thread-safe: one thread uses an engine at a time.

    `run` computes batches (see karat.engine.model_running.model_runner). It may be replaced between steps, for example
    by one that watches it. Every choice of a request ends with exactly one finish reason, and then its blocks are free.
    A forward pass that raises changes nothing: its sequences can be stepped again or aborted.

    Where steps overlap (EngineConfig.overlaps_steps), one step is computed while the next one is made of other
    sequences, and while the one before it is read. So a call may return without updates of the step that it began.

    An interrupt may leave a call anywhere. The next call repairs the state: choices are rebuilt from their tokens, and
    all sequences are computed anew, which gives the same tokens. After an interrupt while adding or aborting, the
    caller aborts (again).
    """

    def __init__(
        self,
        run: Runner,
        tokenizer: Tokenizer,
        config: EngineConfig,
        clock: Callable[[], float] = perf_counter,
        grammars: GrammarCache | None = None,
    ) -> None:
        """`clock` gives seconds. The time of steps decides how much of a prompt the next ones compute.

        grammars: those of another engine with this tokenizer and vocabulary (None: its own).
        """
        self.config = config
        self.scheduler = Scheduler(
            BlockPool(config.groups, config.block_size, config.states),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_prompt_logits=config.max_prompt_logits,
            share_prefixes=config.enable_prefix_caching,
        )
        self.run = run
        self._tokenizer = tokenizer
        self._clock = clock
        self._pace = Pace(config.key_work)
        self._next_beside = 0.0  # on the clock: when work beside requests is due, while there are any
        self._seq_ids = count()
        self._readers: dict[int, Reader] = {}  # by seq_id; a reader that ended is not in it
        self._entries: dict[str, OpenEntry] = {}  # by request_id
        self._num_steps = self._num_prompt_tokens = self._num_generated_tokens = 0
        self._in_flight: _Step | None = None  # the step before, where steps overlap
        self._half_done = False  # whether a change is under way, or was when an interrupt came
        self.admission = Admission(
            config, GrammarCache.of(tokenizer, config.vocab_size) if grammars is None else grammars
        )

    @property
    def has_work(self) -> bool:
        return bool(self._readers)

    def stats(self) -> EngineStats:
        """The counters at this moment. It is cheap and changes nothing."""
        scheduler, blocks, config = self.scheduler, self.scheduler.blocks, self.config
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_blocks=blocks.num_blocks,
            num_blocks_used=blocks.num_blocks - blocks.num_free,
            num_preemptions=scheduler.num_preemptions,
            prefix_queries=scheduler.num_wanted_tokens,
            prefix_hits=scheduler.num_found_tokens,
            prefix_stateless=scheduler.num_stateless_tokens,
            state_bytes=config.all_state_bytes,
            num_snapshots=0 if blocks.states is None else blocks.states.num_snapshots,
            max_snapshots=config.max_snapshots,
            num_steps=self._num_steps,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_generated_tokens,
        )

    def add_request(self, request: Request, grammar: "Grammar | None" = None) -> None:
        """Queue a request. RequestError, with nothing queued, for one that can never be served.

        grammar: the compiled form of the answer, if it has one and the caller has that; else this waits for it.
        """
        max_tokens = self.admission.check_limits(request)
        self._mend()
        if request.request_id in self._entries:
            raise RequestError(f"request {request.request_id!r} is already running; give each its own id")
        choices, grammar = [], grammar or self.admission.grammar(request)
        words = words_of(request.params, self._tokenizer)
        for index in range(request.params.n):
            own = {name: getattr(request, name) for name in ("salt", "shares", "priority", "cache_point")}
            sequence = self._sequence(request.prompt_token_ids, max_tokens - 1, **own)
            choices.append(Choice(request, index, sequence, self._tokenizer, max_tokens, grammar, words))
        going = [choice for choice in choices if choice.finish_reason is None]  # a resumed one may have its end
        self._half_done = True
        self._readers.update({choice.sequence.seq_id: choice for choice in going})
        entry = OpenEntry(request, choices, (tuple(choice.given for choice in choices), ()))
        self._entries[request.request_id] = entry
        for choice in going:
            self.scheduler.add(choice.sequence)
        if not going:
            entry.publish()
        self._half_done = False

    def add_logits(self, token_ids: tuple[int, ...], target: LogitsTarget) -> LogitsReader:
        """Queue the computation of all logits [tokens, vocab] of a text. Steps write them to `target`."""
        self.admission.check_tokens("the text", token_ids)
        self.admission.check_fits(len(token_ids))
        self._mend()
        return self._queued(LogitsReader(self._sequence(token_ids), target))

    def replay(
        self,
        request: Request,
        index: int,
        token_ids: tuple[int, ...],
        *,
        rows: int | None = None,
        grammar: "Grammar | None" = None,
    ) -> ReplayReader:
        """Queue the replay of choice `index` of a request, whose tokens were these. It shares no block with others.

        It comes after all other sequences in order. rows: the most tokens that one step of it chooses (None: as many as
        fit). grammar is as in `add_request`. RequestError for one that can never be served.
        """
        max_tokens = self.admission.check_limits(request)
        self.admission.check_tokens("the answer", token_ids)
        text = (*request.prompt_token_ids, *token_ids[:-1])
        num_read = len(request.prompt_token_ids) - 1
        sequence = self._sequence(
            text, num_read=num_read, max_rows=rows, shares=False, is_beside=True, priority=MAX_COUNT
        )
        beside = Sequence(sequence.seq_id, list(request.prompt_token_ids), len(request.prompt_token_ids), 0)
        grammar = grammar or self.admission.grammar(request)
        choice = Choice(request, index, beside, self._tokenizer, max_tokens, grammar)
        self.admission.check_fits(len(text))
        self._mend()
        return self._queued(ReplayReader(sequence, choice, token_ids, self._tokenizer))

    def step(self) -> list[RequestUpdate]:
        """One forward pass over as many sequences as fit. Returns the updates by request; none if there is no work.

        Updates that an interrupted step did not return come with the next one.
        """
        self.advance()
        found = {name: (entry, entry.delivery) for name, entry in self._entries.items() if entry.delivery[1]}
        updates = [update for _, (_, made) in found.values() for update in made]
        try:
            for request_id in found:
                self.take(request_id)
            return updates
        except BaseException:
            for request_id, (entry, delivery) in found.items():
                entry.delivery = delivery
                self._entries[request_id] = entry
            raise

    def advance(self, *, is_watched: bool = True, prompt_step_s: float = inf) -> None:
        """One forward pass over as many sequences as fit. `take` then returns the updates.

        With `is_watched`, callers see tokens as they come, and the step is bounded by time: at most about max_step_ms
        if a sequence decodes, prompt_step_s if none does. If max_step_ms is 0, no step is bounded. Replays beside
        requests get PREFILL_SHARE of a bounded engine's time, and add about BESIDE_STEP_S to a step.
        """
        self._mend()
        begun = self._clock()
        chunks, budget = self._planned(begun, is_watched, prompt_step_s)
        step = self._submit(chunks, budget, begun)
        self._collect(self._due(step))

    def take(self, request_id: str) -> tuple[RequestUpdate, ...]:
        """The updates of a request since the last call, in order. After the last update the request is forgotten.

        RequestError if there is no such request, so that no caller waits forever.
        """
        entry = self._entry(request_id)
        carried, updates = entry.delivery
        if entry.ended:
            del self._entries[request_id]
        else:
            entry.delivery = carried, ()
        return updates

    def prompt_progress(self, request_id: str) -> PromptProgress | None:
        """The progress of choice 0's prompt; None while the request waits. RequestError as in `take`."""
        entry = self._entry(request_id)
        sequence = entry.choices[0].sequence
        if sequence.num_found is None:
            return None
        num_tokens = sequence.prompt_len
        return PromptProgress(num_tokens, sequence.num_found, min(sequence.num_computed, num_tokens))

    def abort(self, request_id: str) -> RequestUpdate | None:
        """End all open choices of a request with "abort" and free their blocks; None if there is no such request."""
        self._mend()
        entry = self._entries.get(request_id)
        if entry is None:
            return None
        self._half_done = True
        for choice in entry.choices:
            if choice.sequence.seq_id in self._readers:
                choice.abort()
                self._drop(choice)
        entry.publish()
        self._half_done = False
        updates = self.take(request_id)
        chunks = tuple(chunk for update in updates for chunk in update.chunks)
        return msgspec.structs.replace(updates[-1], chunks=chunks)

    def abort_reading(self, asked: LogitsTarget | Request) -> None:
        """End what `add_logits` began for this target, or `replay` for this request object, and free its blocks.

        No effect if it has ended by itself. It is not named by its reader, because a caller that was interrupted in
        those calls does not have that.
        """
        self._mend()
        for reader in list(self._readers.values()):
            is_target = isinstance(reader, LogitsReader) and reader.target is asked
            if is_target or (isinstance(reader, ReplayReader) and reader.request is asked):
                self._half_done = True
                self._drop(reader)
                self._half_done = False

    def _mend(self) -> None:
        """Repair the state after an interrupt, from readers and requests. It may be interrupted too."""
        if not self._half_done:
            return
        for seq_id, reader in list(self._readers.items()):
            reader.recover()
            is_lost = isinstance(reader, Choice) and reader.request_id not in self._entries
            if is_lost or reader.done:
                del self._readers[seq_id]
        self._in_flight = None  # what it still writes, later steps overwrite
        self.scheduler.restart([reader.sequence for reader in self._readers.values()])
        for entry in self._entries.values():
            entry.publish()
        self._half_done = False

    def _sequence(self, prompt: tuple[int, ...], max_new: int = 0, **others: Any) -> Sequence:
        """A sequence of this prompt; `others` are fields of it."""
        return Sequence(next(self._seq_ids), list(prompt), len(prompt), len(prompt) + max_new, **others)

    def _queued(self, reader: AnyReader) -> AnyReader:
        self._half_done = True
        self._readers[reader.sequence.seq_id] = reader
        self.scheduler.add(reader.sequence)
        self._half_done = False
        return reader

    def _entry(self, request_id: str) -> OpenEntry:
        entry = self._entries.get(request_id)
        if entry is None:
            raise RequestError(f"there is no request {request_id!r}: it has ended or was aborted; make it again")
        return entry

    def _drop(self, reader: Reader, *, forget: bool = False) -> None:
        del self._readers[reader.sequence.seq_id]
        self.scheduler.remove(reader.sequence, forget=forget)

    def _planned(self, begun: float, is_watched: bool, prompt_step_s: float) -> tuple[list[Chunk], StepBudget]:
        """The chunks of the step that begins now, and the budget that they keep to.

        Where there is work beside requests too, prefills of both take turns: that work is due again when requests have
        had their part of the time, and whoever has nothing to compute leaves its turn.
        """
        max_step_s = self.config.max_step_ms / 1000
        if not is_watched or max_step_s == 0:
            return self._schedule(budget := self._pace.budget()), budget
        budget = self._pace.budget(max_step_s, prompt_step_s)
        if len({reader.sequence.is_beside for reader in self._readers.values()}) < 2:
            return self._schedule(budget), budget
        if begun >= self._next_beside:
            self._next_beside = begun + pause_after(BESIDE_STEP_S)  # or as the step says, if there is room for one
            beside = self._pace.budget_beside()
            if chunks := self._schedule(beside, beside=True):
                return chunks, beside
        if chunks := self._schedule(budget, beside=False):
            return chunks, budget
        return self._schedule(beside := self._pace.budget_beside(), beside=True), beside

    def _schedule(self, budget: StepBudget, *, beside: bool | None = None) -> list[Chunk]:
        """The chunks of this step, their blocks reserved."""
        self._half_done = True
        in_flight = () if self._in_flight is None else self._in_flight.seq_ids
        chunks = self.scheduler.schedule(budget, in_flight, beside=beside)
        self._half_done = False
        return chunks

    def _submit(self, chunks: list[Chunk], budget: StepBudget = UNBOUNDED, begun: float = 0.0) -> _Step | None:
        """Begin to compute the chunks; None if there are none."""
        if not chunks:
            return None
        batch = build_batch(chunks, self.scheduler.blocks, vocab_size=self.config.vocab_size)
        decoded, prefilled = work_of(budget, chunks)
        return _Step(
            chunks=chunks,
            num_rows=[len(chunk.seq.wanted(chunk.num_tokens)) for chunk in chunks],
            begun=begun,
            decoded=decoded,
            prefilled=prefilled,
            pending=self.run.submit(batch),
        )

    def _due(self, step: _Step | None) -> _Step | None:
        """The step to collect: this one, or the one before it where steps overlap."""
        if not self.config.overlaps_steps:
            return step
        due, self._in_flight = self._in_flight, step
        return due

    def _results(self, step: _Step) -> Iterable[tuple[Chunk, Rows | NumericsError]]:
        """Logits [positions, vocab] of each chunk. After a NumericsError the chunks are run again one by one.

        So only the sequence at fault ends. Running a chunk again is safe: K and V go to the same slots.
        """
        try:
            logits = step.pending.rows()
        except NumericsError as error:
            if len(step.chunks) == 1:
                return [(step.chunks[0], error)]
            there = [chunk for chunk in step.chunks if chunk.seq.seq_id in self._readers]
            return [(chunk, self._alone(chunk)) for chunk in there]
        assert logits.shape == (sum(step.num_rows), self.config.vocab_size), f"logits of shape {logits.shape}"
        bounds = pairwise(accumulate(step.num_rows, initial=0))
        return [(chunk, logits[start:end]) for chunk, (start, end) in zip(step.chunks, bounds, strict=True)]

    def _alone(self, chunk: Chunk) -> Rows | NumericsError:
        """The result of a chunk in a step of its own. A copy, because the next step may overwrite rows."""
        step = self._submit([chunk])
        assert step is not None
        ((_, result),) = self._results(step)
        return result if isinstance(result, NumericsError) else result.copy()

    def _collect(self, step: _Step | None) -> None:
        """Wait for a step, sample, make text, end finished choices, and publish the updates."""
        if step is None:
            return
        results = self._results(step)
        self._half_done = True
        changed: dict[str, None] = {}
        for chunk, logits in results:
            reader = self._readers.get(chunk.seq.seq_id)
            if reader is None:
                continue  # it was aborted while the step was computed
            self._serve(reader, chunk, logits)
            if isinstance(reader, Choice):
                changed[reader.request_id] = None
        for request_id in changed:
            if (entry := self._entries[request_id]).is_due:
                entry.publish()
        self._num_steps += 1
        self._half_done = False
        now, is_beside = self._clock(), step.is_beside
        more_s = self._pace.note(now - step.begun, decoded=step.decoded, prefilled=step.prefilled, beside=is_beside)
        if is_beside:
            self._next_beside = now + pause_after(more_s)

    def _serve(self, reader: Reader, chunk: Chunk, logits: Rows | NumericsError) -> None:
        """Give a chunk's logits to its reader. An error ends this reader alone."""
        try:
            self._read(reader, chunk, logits)
            if reader.done:
                self._drop(reader)
        except Exception as error:  # noqa: BLE001 - reported in the choice's `error`, and logged if it is a bug
            if not isinstance(error, KaratError):
                _log.error("a sequence ends because its tokens could not be read", exc_info=error)
            reader.fail(error)
            self._drop(reader, forget=isinstance(error, NumericsError))

    def _read(self, reader: Reader, chunk: Chunk, logits: Rows | NumericsError) -> None:
        """Let the reader take rows of a chunk's logits. The tokens whose rows it leaves are not accepted."""
        if isinstance(logits, NumericsError):
            raise logits
        seq, num_taken, num_tokens = reader.sequence, 0, len(reader.sequence.token_ids)
        if not seq.is_decoding or num_tokens == seq.prompt_len:
            self._num_prompt_tokens += chunk.num_tokens
        if len(logits):
            first = seq.wanted(chunk.num_tokens).start
            num_taken = reader.read(first, logits)
            assert 0 < num_taken <= len(logits), f"a reader took {num_taken} of {len(logits)} rows"
            seq.num_read = first + num_taken
        self.scheduler.advance(chunk, chunk.num_tokens - len(logits) + num_taken)
        self._num_generated_tokens += len(seq.token_ids) - num_tokens
