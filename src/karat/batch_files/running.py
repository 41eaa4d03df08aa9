"""Running: a batch from its input to its output, whatever happened before and happens meanwhile."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from karat.batch_files.asking import PatientPlace
from karat.batch_files.journal import BatchAnswer, Journal
from karat.batch_files.lines import BatchRequest, Fault, LineReading
from karat.batch_files.results import fault_line, result_line
from karat.batch_files.sources import Source
from karat.checkpoint.files import whole_file
from karat.errors import ClientError, KaratError, UsageError

WINDOW = 10_000  # requests whose order is free, so that those that begin alike are neighbours
PATIENCE_S = 10.0  # how long a place is waited for, all its delays together, so that each gets as many requests
_COMMIT_S = 0.5
_LOOK_S = 1.0  # between two looks whether a place that is waited for still answers
_RATE_S = 300.0  # over which a rate is taken


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch: its input as requests, its seed, and the journal of its answers."""

    source: Source
    reading: LineReading
    seed: int
    journal: Journal

    def requests(self) -> Iterator[BatchRequest | Fault]:
        """The lines of the input in order. A custom_id that comes again is a fault. Equal lines without one are told
        apart by their count, so another order of the input has the same requests.
        """
        self.journal.forget_ids()
        for line in self.reading.lines(self.source.records()):
            if isinstance(line, BatchRequest) and self.journal.times_seen(line.custom_id) > 1:
                said = f"line {line.number}: custom_id {line.custom_id!r:.80} is another line's, too; give each its own"
                yield Fault(line.number, line.custom_id, "duplicate_custom_id", said)
            elif isinstance(line, BatchRequest) and line.given_id is None:
                yield replace(line, occurrence=self.journal.times_seen(line.key))
            else:
                yield line

    def pending(self) -> Iterator[BatchRequest]:
        """What has no good answer yet. Within a window requests that begin alike are neighbours."""
        unanswered = self._unanswered()
        while window := list(islice(unanswered, WINDOW)):
            yield from sorted(window, key=lambda request: request.prefix_key)

    def _unanswered(self) -> Iterator[BatchRequest]:
        for line in self.requests():
            if isinstance(line, BatchRequest) and self.journal.digest_of(line.key) != line.digest:
                yield line


@dataclass(slots=True)
class Survey:
    """What is in the input, before anything is asked. `models`: names in bodies, a few of them at the most."""

    num_requests: int = 0
    num_answered: int = 0
    num_edited: int = 0  # answered, and then changed in the input
    num_faults: int = 0
    models: set[str] = field(default_factory=set)


def survey(batch: Batch) -> Survey:
    """Reads the whole input once."""
    found = Survey()
    for line in batch.requests():
        if isinstance(line, Fault):
            found.num_faults += 1
            continue
        found.num_requests += 1
        known = batch.journal.digest_of(line.key)
        found.num_answered += known == line.digest
        found.num_edited += known is not None and known != line.digest
        if isinstance(model := line.body.get("model"), str) and len(found.models) < 10:
            found.models.add(model)
    return found


class BatchMeter:
    """How far a batch is: requests and tokens so far, and the rate of late."""

    def __init__(self, num_requests: int) -> None:
        self.num_requests = num_requests
        self.num_done = self.num_failed = self.num_tokens = 0
        self._begun = monotonic()
        self._marks: deque[tuple[float, int, int]] = deque([(self._begun, 0, 0)])

    def count(self, answer: BatchAnswer) -> None:
        self.num_done += 1
        self.num_failed += not answer.is_good
        self.num_tokens += _tokens_of(answer) if answer.is_good else 0

    @property
    def elapsed_s(self) -> float:
        return monotonic() - self._begun

    def told(self) -> str:
        """For who waits. What is left is taken to last as long as what was answered in the last minutes."""
        now = monotonic()
        self._marks.append((now, self.num_done, self.num_tokens))
        while len(self._marks) > 2 and now - self._marks[0][0] > _RATE_S:
            self._marks.popleft()
        then, done, tokens = self._marks[0]
        text = f"{self.num_done:,} of {self.num_requests:,} answered"
        if now > then and self.num_done > done:
            text += f", {(self.num_tokens - tokens) / (now - then):,.0f} tokens a second"
            left_s = (self.num_requests - self.num_done) * (now - then) / (self.num_done - done)
            if self.elapsed_s > 10:
                text += f", about {duration(left_s)} left"
        return text


def duration(seconds: float) -> str:
    """A time for people: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


async def answer_pending(
    batch: Batch, places: Sequence[PatientPlace], num_each: int, meter: BatchMeter, tell: Callable[[str], None]
) -> None:
    """Ask for all that is pending, of each place `num_each` at a time; what comes is in the journal within a second.

    Places get as many requests each, as long as none is much slower than the others (_Dealing). What a place that gives
    up was asked goes to the others. ClientError when the last one gives up; it, an error of the disk and a cancellation
    end it, and what came until then is kept.
    """
    pending, came = _Dealing(batch.pending(), places, num_each), _Kept(batch.journal)

    async def work(place: PatientPlace) -> None:
        while (request := await pending.take(place)) is not None:
            try:
                answer = await place.answer(request.route, request.content(batch.seed))
            except ClientError:
                pending.give_back(request, place)
                if not pending.places:
                    raise
                return
            meter.count(answer)
            came.add(request, answer)
            pending.done()

    async def report() -> None:
        while True:
            await asyncio.sleep(_COMMIT_S)
            await came.commit()
            tell(meter.told())

    try:
        async with asyncio.TaskGroup() as group:
            reporting = group.create_task(report())
            workers = [group.create_task(work(place)) for _ in range(num_each) for place in places]
            await asyncio.wait(workers)
            reporting.cancel()
    except* KaratError as errors:
        raise errors.exceptions[0] from None
    finally:
        await asyncio.shield(came.commit())


class _Dealing:
    """Requests, dealt out to places. One that was taken is `done`, or is given back and taken by another place.

    A place that is `lead` requests before another waits for it: for PATIENCE_S seconds in all, and not at all for one
    that gives no answers. So a moment of a busy machine leaves no server idle, and one that is slow keeps nobody.
    """

    def __init__(self, requests: Iterator[BatchRequest], places: Sequence[PatientPlace], lead: int) -> None:
        self._requests = requests
        self._lead = lead
        self._next: deque[BatchRequest] = deque()  # one of `requests`, and what was given back
        self._num_out = 0
        self._changed = asyncio.Event()
        self.places = {place: _Dealt() for place in places}  # those that have not given up

    async def take(self, place: PatientPlace) -> BatchRequest | None:
        """The next request; None when all are done, or the place gave up. While others may give one back, it waits."""
        while place in self.places:
            self._next.extend(islice(self._requests, 0 if self._next else 1))
            if not self._next and not self._num_out:
                return None
            wait_s = self._wait_s(place) if self._next else None
            if self._next and wait_s is None:
                self._num_out += 1
                self.places[place].take(monotonic())
                self._changed.set()
                return self._next.popleft()
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)
        return None

    def _wait_s(self, place: PatientPlace) -> float | None:
        """How long the place waits for those behind it, at most; None where it needs not."""
        now, own, left = monotonic(), self.places[place].num_taken, []
        for other, dealt in self.places.items():
            if own - dealt.num_taken < self._lead:
                continue
            if other.is_failing:
                dealt.num_taken = own - self._lead + 1  # it begins beside the others when it comes back
            elif dealt.waited_s(now) < PATIENCE_S:
                dealt.awaited_since = dealt.awaited_since or now
                left.append(min(PATIENCE_S - dealt.waited_s(now), _LOOK_S))
        return max(left, default=None)

    def done(self) -> None:
        self._num_out -= 1
        self._changed.set()

    def give_back(self, request: BatchRequest, place: PatientPlace) -> None:
        """The place gives up."""
        self.places.pop(place, None)
        self._next.append(request)
        self.done()


@dataclass(slots=True)
class _Dealt:
    """What one place was given, and how long others waited for it."""

    num_taken: int = 0
    awaited_since: float | None = None
    _waited_s: float = 0.0

    def waited_s(self, now: float) -> float:
        return self._waited_s + (0.0 if self.awaited_since is None else now - self.awaited_since)

    def take(self, now: float) -> None:
        self.num_taken += 1
        self._waited_s, self.awaited_since = self.waited_s(now), None


class _Kept:
    """Answers on their way to the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: list[tuple[str, bytes, BatchAnswer]] = []

    def add(self, request: BatchRequest, answer: BatchAnswer) -> None:
        self._waiting.append((request.key, request.digest, answer))

    async def commit(self) -> None:
        """When this returns, all that was added before is on the disk."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            try:
                await asyncio.to_thread(self._journal.add, waiting)
            except BaseException:
                self._waiting = waiting + self._waiting
                raise


def write_results(batch: Batch, output: Path, errors: Path, *, times: bool) -> tuple[int, int]:
    """Write the answers in the order of the input, and beside them the errors. How many there are of each.

    Without errors there is no such file. UsageError if an answer is missing: the input has changed meanwhile.
    """
    num_good = num_bad = 0
    with whole_file(output) as good, whole_file(errors) as bad:
        for line in batch.requests():
            if isinstance(line, Fault):
                bad.write(fault_line(line))
                num_bad += 1
                continue
            answer = batch.journal.answer_of(line.key, line.digest)
            if answer is None:
                raise UsageError(f"line {line.number} of the input has changed since this run began; run it again")
            (good if answer.is_good else bad).write(result_line(line, answer, times=times))
            num_good, num_bad = num_good + answer.is_good, num_bad + (not answer.is_good)
    if not num_bad:
        errors.unlink(missing_ok=True)
    return num_good, num_bad


def _tokens_of(answer: BatchAnswer) -> int:
    try:
        usage = msgspec.json.decode(answer.body, type=_Told).usage
    except msgspec.DecodeError:
        return 0
    return usage.completion_tokens or usage.output_tokens


class _Usage(msgspec.Struct):
    completion_tokens: int = 0
    output_tokens: int = 0


class _Told(msgspec.Struct):
    usage: _Usage = msgspec.field(default_factory=_Usage)


def facts_of(batch: Batch, *, receipts: bool, fingerprint: str | None) -> Mapping[str, Any]:
    """What all answers of a batch depend on. `fingerprint` is the model's, where it is known."""
    facts: dict[str, Any] = {"seed": batch.seed, "body": batch.reading.defaults, "receipts": receipts}
    return facts if fingerprint is None else {**facts, "fingerprint": fingerprint}
