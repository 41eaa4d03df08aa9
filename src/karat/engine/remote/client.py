"""AsyncEngine: the engine's process as one event loop uses it: open requests, incoming updates, and its death."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from karat.children.connection import ConnectionEndedError
from karat.engine.receipts.comparing import Compare
from karat.engine.receipts.verifying import ReplayCommand
from karat.engine.remote.messages import Abort, ComparisonEnded, EngineFailed, Log, Replayed, Stepped
from karat.engine.remote.open_request import OpenRequest
from karat.engine.remote.process import encoded, raised
from karat.engine.remote.source import RunningEngine
from karat.engine.requests.request_updates import Gathered, RequestUpdate
from karat.engine.stats import EngineStats
from karat.errors import EngineDiedError, KaratError, OverloadedError, RequestError, UsageError, unpacked
from karat.outputs import RequestOutput
from karat.request_record import Request

MAX_REPLAYS = 16
MAX_KEPT_TOKENS = 4096  # of one answer that nobody reads
FINAL_S = 60.0  # a second death within this is final
_LOOK_S = 0.25  # between looks at the engine while it works
_IDLE_LOOK_S = 1.0

_log = logging.getLogger(__name__)


class AsyncEngine:
    """The requests of an engine's process whose model is loaded. All calls come from one event loop at a time.

    `start` starts another process, where this one died. At most max_queue answers wait in addition to the max_num_seqs
    that are computed; a request has `n` of them. `stats` are those of the last step, at first the given ones. `damage`
    says, once it is known, why no process may serve this model any more.
    """

    def __init__(
        self,
        start: Callable[[], RunningEngine],
        process: RunningEngine,
        stats: EngineStats,
        damage: Callable[[], KaratError | None],
        *,
        max_queue: int,
        max_num_seqs: int,
    ) -> None:
        self.process = process
        self.stats = self._no_stats = stats
        self.failure: KaratError | None = None
        self.closed = False
        self._start = start
        self._damage = damage
        self._max_queue = max_queue
        self._max_num_seqs = max_num_seqs
        self._deaths: list[float] = []  # the last two
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._open: dict[str, OpenRequest] = {}  # by the id that the process knows
        self._num_coming = 0  # answers of requests that have a place and are not made yet
        self._replays: dict[str, asyncio.Future[Replayed | ComparisonEnded]] = {}
        self._restarting = asyncio.Lock()

    def require_open(self) -> None:
        """Raise UsageError after `close`."""
        if self.closed:
            raise UsageError("this AsyncLLM was closed; expected one that is open; load the model again")

    @property
    def has_work(self) -> bool:
        """Whether requests are open, or receipts replayed. Any thread may ask."""
        return bool(self._open or self._replays)

    def attach(self) -> None:
        """Listen to the engine in the running event loop.

        Raises EngineDiedError if it has died, UsageError after `close`.
        """
        self.require_open()
        loop = asyncio.get_running_loop()
        if self._loop is not loop and self.failure is None:
            if self._loop is not None and self._loop.is_running():
                raise UsageError("an AsyncLLM serves one event loop at a time; use it from that one, or open another")
            self._detach()
            self._loop = loop
            loop.add_reader(self.process.fileno(), self._hear)
            self._look()
            self._tell()
        if self.failure is None and (damage := self._damage()) is not None:
            self._fail(damage)
        if self.failure is not None:
            raise EngineDiedError(str(self.failure))

    @contextmanager
    def place(self, name: str, num_answers: int) -> Iterator[None]:
        """Hold places in the queue while a request of this name with so many answers is made.

        OverloadedError if there are too few. One that has more answers than there are places is taken when the engine
        has nothing else.
        """
        there = self._num_coming + sum([opened.request.params.n for opened in self._open.values()])
        if there and there + num_answers > self._max_num_seqs + self._max_queue:
            num_waiting = max(0, there - self._max_num_seqs)
            more = "" if num_answers == 1 else f", {num_answers} more were asked for"
            raise OverloadedError(
                f"{num_waiting} answers wait already{more}, and {self._max_queue} may (max_queue); try again later"
            )
        self._require_free(name)
        self._num_coming += num_answers
        try:
            yield
        finally:
            self._num_coming -= num_answers

    def add(
        self,
        request: Request,
        number: str,
        message: bytes,
        see: Callable[[RequestUpdate], None] | None = None,
        complete: Callable[[Gathered], Awaitable[RequestOutput]] | None = None,
    ) -> OpenRequest:
        """Send a request to the engine, which knows it by `number`: `message` is what the engine is to have of it.

        RequestError if another request of its name is open.
        """
        self.attach()
        self._require_free(request.request_id)
        opened = OpenRequest(request, number, most_kept=MAX_KEPT_TOKENS, see=see, complete=complete)
        if not self._open:
            self._look_later(_LOOK_S)
        self._open[number] = opened
        self._tell(message)
        return opened

    def abort(self, name: str) -> None:
        """Make the engine end the request of this name, if there is one. Its last update then says "abort"."""
        for opened in self._open.values():
            if opened.request.request_id == name:
                self._tell(encoded(Abort(opened.number)))

    def forget(self, opened: OpenRequest) -> None:
        """Drop a request whose caller no longer waits. The engine frees its blocks if it has not ended."""
        if self._open.pop(opened.number, None) is not None:
            self._tell(encoded(Abort(opened.number)))

    async def replay(self, command: ReplayCommand | Compare, message: bytes) -> Replayed | ComparisonEnded:
        """What the engine found: Parted for Compare. OverloadedError if too many replays are under way."""
        self.attach()
        if len(self._replays) >= MAX_REPLAYS:
            raise OverloadedError(
                f"{len(self._replays)} receipts are verified already, as many as may; try again later"
            )
        number = command.request.request_id
        self._replays[number] = asyncio.get_running_loop().create_future()
        self._look_later(_LOOK_S)
        self._tell(message)
        try:
            return await self._replays[number]
        finally:
            if self._replays.pop(number).cancelled():
                self._tell(encoded(Abort(number)))

    async def restart(self) -> None:
        """See AsyncLLM.restart."""
        self.require_open()
        async with self._restarting:
            if self.failure is None:
                return
            if (damage := self._damage()) is not None:
                raise EngineDiedError(f"the engine is not started again: {damage}")
            if len(self._deaths) > 1 and self._deaths[1] - self._deaths[0] < FINAL_S:
                raise EngineDiedError(f"the engine died again within a minute, and is left at that: {self.failure}")
            process = await asyncio.to_thread(_started, self._start)
            if self.closed:
                process.close()
                self.require_open()
            self.process, self.stats, self.failure = process, self._no_stats, None
            self.attach()

    def end_requests(self) -> None:
        """From now on every use raises UsageError, and so do calls that wait for an answer."""
        if not self.closed:
            self.closed = True
            self._detach()
            self._end_all(lambda: UsageError("this AsyncLLM was closed before the request had ended"))

    def _tell(self, command: bytes | None = None) -> None:
        """Send a message: as much as goes without waiting, and the rest as soon as the socket takes it."""
        if self.failure is not None or self.closed:
            return
        if not self.process.tell(command) and self._loop is not None and not self._loop.is_closed():
            self._loop.add_writer(self.process.fileno(), self._tell_rest)

    def _tell_rest(self) -> None:
        if self.process.tell() and self._loop is not None:
            self._loop.remove_writer(self.process.fileno())

    def _detach(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        if self._loop is not None and not self._loop.is_closed():
            with suppress(ValueError, OSError):  # its descriptor is closed, or not of this loop any more
                self._loop.remove_reader(self.process.fileno())
                self._loop.remove_writer(self.process.fileno())
        self._loop = self._next_look = None

    def _hear(self) -> None:
        """Handle all messages that have arrived: usually one, of one step."""
        try:
            messages = self.process.take()
        except ConnectionEndedError:
            self._fail(self.process.cause_of_end())
            return
        for message in messages:
            write_logs(message.logs)
            match message:
                case Stepped():
                    self.stats = message.stats
                    for replayed in message.replayed:
                        if (waiting := self._replays.get(replayed.request_id)) is not None and not waiting.done():
                            waiting.set_result(replayed)
                    for update in message.updates:
                        if (opened := self._open.get(update.request_id)) is not None:
                            self._bring(opened, update)
                case EngineFailed():
                    self._fail(raised(message))
                    return

    def _bring(self, opened: OpenRequest, update: RequestUpdate) -> None:
        """Give a request its update. What goes wrong with them ends this request alone."""
        try:
            if update.refused is not None:
                opened.fail(unpacked(*update.refused))
            else:
                opened.bring(update)
        except Exception as fault:  # noqa: BLE001 - raised where the caller waits
            opened.fail(fault)
        if update.ended:
            del self._open[update.request_id]
        elif opened.has_ended:  # nobody read it, or it failed here
            self.forget(opened)

    def _look(self) -> None:
        """Check now, and again at intervals, whether the engine hangs, or its model is damaged."""
        has_work = self.has_work
        error = self._damage() or self.process.look(has_work=has_work)
        if error is not None:
            self._fail(error)
        else:
            self._look_later(_LOOK_S if has_work else _IDLE_LOOK_S)

    def _look_later(self, delay_s: float) -> None:
        assert self._loop is not None
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = self._loop.call_later(delay_s, self._look)

    def _fail(self, cause: KaratError) -> None:
        """The engine died or hangs: every waiting call raises."""
        _log.error("%s", cause)
        self._detach()
        self.failure = cause
        self._deaths = [*self._deaths[-1:], time.monotonic()]
        self.process.close()
        self._end_all(lambda: EngineDiedError(str(cause)))

    def _require_free(self, name: str) -> None:
        if any(opened.request.request_id == name for opened in self._open.values()):
            raise RequestError(f"request {name!r} is already open; give each its own id")

    def _end_all(self, error: Callable[[], KaratError]) -> None:
        ended, self._open = self._open, {}
        for opened in ended.values():
            opened.fail(error())
        for waiting in self._replays.values():
            if not waiting.done():
                waiting.set_exception(error())


def _started(start: Callable[[], RunningEngine]) -> RunningEngine:
    """A new process with the loaded model. Errors of loading pass through."""
    process = start()
    try:
        write_logs(process.ready(None).logs)
    except BaseException:
        process.close()
        raise
    return process


def write_logs(logs: list[Log]) -> None:
    for log in logs:
        logging.getLogger(log.logger).log(log.level, "%s", log.text)
