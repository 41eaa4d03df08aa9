"""SharedEngine: several threads use one engine. Each waits for its own requests; one at a time is in the engine."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from threading import RLock
from time import perf_counter, sleep
from typing import TypeVar

from karat.engine.choosing.logits_readers import LogitsTarget
from karat.engine.choosing.replay_reader import ReplayReader
from karat.engine.engine import Engine
from karat.engine.requests.request_bar import RequestBar
from karat.engine.requests.request_updates import Gathered, PromptProgress, RequestUpdate
from karat.engine.scheduling.step_budget import PROMPT_STEP_S, pause_after
from karat.errors import KaratError, UsageError
from karat.outputs import StreamChunk
from karat.request_record import Request

T = TypeVar("T")


@contextmanager
def ending(act: Callable[[], object]) -> Iterator[None]:
    """Call `act` at the end, and twice where an exception passes: an interrupt may have hit the first call."""
    try:
        try:
            yield
        finally:
            act()
    except BaseException:
        act()
        raise


class SharedEngine:
    """Serves several threads with one engine. A step computes for all of them, whichever thread makes it.

    `damage` says, once it is known, why the model may not be used any more. An interrupt may come anywhere, also while
    another one is being cleaned up: see `ending`.
    """

    def __init__(self, engine: Engine, damage: Callable[[], KaratError | None]) -> None:
        self._engine = engine
        self._damage = damage
        self._lock = RLock()
        self._inside = False  # whether the thread that has the lock is in the engine
        self._left: list[str] = []  # requests whose callers no longer wait
        self._streams: set[str] = set()  # requests whose callers see tokens as they come
        self._told: set[str] = set()  # requests whose callers follow the prompt's progress
        self._closed = False

    def require_open(self) -> None:
        """Raise UsageError after `close`, and for a damaged model what is wrong with it."""
        if self._closed:
            raise UsageError("this LLM was closed; expected one that is open; load the model again, with LLM(...)")
        if (damage := self._damage()) is not None:
            raise type(damage)(str(damage))  # a new one: threads raise it beside each other

    def close(self, act: Callable[[], None]) -> None:
        """From now on every use raises UsageError. `act` is called while no thread is in the engine."""
        with self._lock:
            self._closed = True
            act()

    def run(self, requests: Sequence[Request], *, show_progress: bool | None) -> list[Gathered]:
        """What came of all requests, in their order. show_progress is RequestBar's `shown`."""
        gathered = {request.request_id: Gathered(request) for request in requests}
        bar = RequestBar(len(requests), shown=show_progress)
        with ending(bar.close), ending(lambda: self._forget(requests)):
            for request in requests:
                self._add(request)
            open_ids = list(gathered)
            while open_ids:
                self._advance()
                for request_id in list(open_ids):
                    for update in self._take(request_id):
                        bar.count(update)
                        gathered[request_id].add(update)
                        if update.ended:
                            open_ids.remove(request_id)
                bar.draw()
        return list(gathered.values())

    def stream(
        self, request: Request, on_prompt: Callable[[PromptProgress], object] | None = None
    ) -> Generator[StreamChunk, None, None]:
        """The chunks of a request, as a generator: the request is queued when the first chunk is asked for.

        `on_prompt` is called after each step until the prompt is computed; its exception ends the request.
        """
        with ending(lambda: self._forget([request])):
            self._streams.add(request.request_id)
            if on_prompt is not None:
                self._told.add(request.request_id)
            self._add(request)
            ended = False
            while not ended:
                while not (updates := self._take(request.request_id)):
                    self._advance()
                    if request.request_id in self._told and on_prompt is not None:
                        self._tell(request.request_id, on_prompt)
                for update in updates:
                    yield from update.chunks
                    ended = update.ended

    def write_logits(self, token_ids: tuple[int, ...], target: LogitsTarget) -> None:
        """Write all logits [tokens, vocab] of a text to `target`."""
        with ending(lambda: self._alone(lambda: self._engine.abort_reading(target))):
            reader = self._alone(lambda: self._engine.add_logits(token_ids, target))
            while not reader.done:
                self._advance()
        if reader.error:
            raise reader.error

    def replay(self, request: Request, index: int, token_ids: tuple[int, ...]) -> ReplayReader:
        """The replay of a choice, done. Raises the error that ended it."""
        with ending(lambda: self._alone(lambda: self._engine.abort_reading(request))):
            replay = self._alone(lambda: self._engine.replay(request, index, token_ids))
            while not replay.done:
                self._advance()
        if replay.error:
            raise replay.error
        return replay

    def between(self, steps: Generator[None, None, T]) -> T:
        """The result of a computation that is none of the engine's, a step at a time and beside no step of it.

        Between its steps the requests of other threads have the time of `pause_after`.
        """
        while True:
            self.require_open()
            begun = perf_counter()
            try:
                self._alone(lambda: next(steps))
            except StopIteration as end:
                result: T = end.value
                return result
            if self._engine.has_work:
                sleep(pause_after(perf_counter() - begun))

    def _add(self, request: Request) -> None:
        self._alone(lambda: self._engine.add_request(request))

    def _advance(self) -> None:
        self.require_open()
        self._alone(self._abort_left)
        prompt_step_s = PROMPT_STEP_S if self._told else inf
        self._alone(lambda: self._engine.advance(is_watched=bool(self._streams), prompt_step_s=prompt_step_s))

    def _tell(self, request_id: str, on_prompt: Callable[[PromptProgress], object]) -> None:
        progress = self._alone(lambda: self._engine.prompt_progress(request_id))
        if progress is not None:
            if progress.num_computed == progress.num_tokens:
                self._told.discard(request_id)
            on_prompt(progress)

    def _take(self, request_id: str) -> tuple[RequestUpdate, ...]:
        return self._alone(lambda: self._engine.take(request_id))

    def _forget(self, requests: Sequence[Request]) -> None:
        with self._lock:
            self._left += [request.request_id for request in requests]
            self._streams.difference_update(self._left)
            self._told.difference_update(self._left)
            if not self._inside:  # else the garbage collector ends a stream in the middle of a step of this thread
                self._alone(self._abort_left)

    def _abort_left(self) -> None:
        while self._left:
            self._engine.abort(self._left[-1])
            self._left.pop()

    def _alone(self, act: Callable[[], T]) -> T:
        """The result of `act`, called while no other thread is in the engine."""
        with self._lock:
            try:
                try:
                    self._inside = True
                    return act()
                finally:
                    self._inside = False
            except BaseException:
                self._inside = False
                raise
