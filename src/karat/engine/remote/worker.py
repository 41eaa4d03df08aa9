"""The process of AsyncLLM's engine: it owns an LLM with its ranks, and computes requests on command.

karat.engine.remote.process starts it. Between two steps it reads all commands that have arrived; then it computes one
step and sends its updates in one message. Without work it sleeps.
"""

import gc
import logging
import os
import select
import signal
import socket
import traceback
from collections.abc import Callable, Sequence
from dataclasses import fields
from math import inf
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from karat.children.connection import Connection, ConnectionEndedError
from karat.engine.choosing.replay_reader import ReplayReader
from karat.engine.llm import LLM
from karat.engine.receipts.comparing import Compare, Comparing, comparing
from karat.engine.receipts.verifying import ReplayCommand
from karat.engine.remote.messages import (
    Abort,
    Asked,
    ComparisonEnded,
    EngineFailed,
    Loading,
    Log,
    Open,
    Ready,
    Replayed,
    Stepped,
    ToEngine,
    request_of,
)
from karat.engine.requests.grammar_cache import PendingGrammar
from karat.engine.requests.request_updates import PromptProgress, RequestUpdate
from karat.engine.scheduling.step_budget import PROMPT_STEP_S, pause_after
from karat.errors import BugError, KaratError, Packed, packed
from karat.models.opening import open_model
from karat.outputs import StreamChunk
from karat.ranks.lifeline import end_with_parent
from karat.request_record import Request

if TYPE_CHECKING:
    from karat.text.grammar import Grammar

_log = logging.getLogger(__name__)
_REPLAYED_ROWS = 64  # tokens of a receipt that a step chooses again, 20 ms of work, while others stream
_IDLE_LOOK_S = 0.5  # between looks at idle ranks
_SILENT_S = 1.0  # without a message, at most, while requests are open
_FORM_LOOK_S = 0.002  # between looks at forms that are compiled, where there is nothing else to do


def main(arguments: Sequence[str]) -> None:
    """Serve until the connection ends; the arguments are the descriptors of socket and lifeline.

    The process then ends with code 0, or with that of the error that ended the engine.
    """
    end, lifeline = map(_low, map(int, arguments))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process decides what ends, ranks included
    end_with_parent(lifeline)
    line = _Line(Connection(socket.socket(fileno=end)))
    code = 0
    try:
        try:
            worker = Worker(line, _opened(line))
            gc.collect()
            gc.freeze()  # what is loaded stays: no collection in a step looks at it again
            worker.serve()
        except ConnectionEndedError:
            raise
        except Exception as error:  # noqa: BLE001 - it is told to who started this process, which raises it
            code = error.exit_code if isinstance(error, KaratError) else KaratError.exit_code
            line.send(EngineFailed(packed(error, with_traceback=True), line.take_logs()))
    except ConnectionEndedError:
        pass
    os._exit(code)  # nothing here is worth a clean-up; ranks end with this process


def _low(descriptor: int) -> int:
    """The same file under the lowest free number: a server's descriptors may be too large for `select`."""
    low = os.dup(descriptor)
    os.close(descriptor)
    return low


class _Line:
    """Typed messages of a connection, and log records since the last one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder: Any = msgspec.msgpack.Decoder(ToEngine)
        self._logs: list[Log] = []
        handler = logging.Handler()
        handler.emit = lambda record: self._logs.append(  # type: ignore[method-assign]
            Log(record.levelno, record.name, record.getMessage().encode(errors="backslashreplace").decode())
        )
        logger = logging.getLogger("karat")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False

    def send(self, message: msgspec.Struct) -> None:
        try:
            encoded = self._encode(message)
        except Exception:
            if not isinstance(message, Stepped):
                raise
            encoded = self._encode(self._without_unfit(message))
        self._connection.send(encoded)

    def _without_unfit(self, step: Stepped) -> Stepped:
        """The step with an error for each request whose update cannot be encoded; the others have theirs."""
        updates = [
            each if (told := self._fault(each)) is None else replace(each, chunks=(), progress=None, refused=told)
            for each in step.updates
        ]
        replayed = [
            each if (told := self._fault(each)) is None else ComparisonEnded(each.request_id, None, told)
            for each in step.replayed
        ]
        return Stepped(updates, step.stats, [*step.logs, *self.take_logs()], replayed)

    def _fault(self, one: RequestUpdate | Replayed | ComparisonEnded) -> Packed | None:
        try:
            self._encode(one)
        except Exception as error:  # noqa: BLE001 - it ends this request alone
            return _told(error)
        return None

    def receive(self) -> ToEngine:
        command: ToEngine = self._decoder.decode(self._connection.receive())
        return command

    def take(self, wait_s: float | None) -> list[ToEngine]:
        """The messages that have arrived whole; if there are none, waits once for more of them (None: without end).

        The rest of a message that came in part is not waited for: a step comes before it.
        """
        found = self._connection.take()
        if not found and wait_s != 0 and select.select([self._connection], [], [], wait_s)[0]:
            found = self._connection.take()
        return [self._decoder.decode(message) for message in found]

    def take_logs(self) -> list[Log]:
        logs, self._logs = self._logs, []
        return logs


def _opened(line: _Line) -> LLM:
    command = line.receive()
    assert isinstance(command, Open), "a command before a model"
    options = {field.name: getattr(command.options, field.name) for field in fields(command.options)}
    options |= options.pop("executor_options")
    tokenizer = None if command.tokenizer is None else Path(command.tokenizer)
    llm = LLM(
        open_model(Path(command.path), command.overrides),
        tokenizer=tokenizer,
        progress=lambda done, total: line.send(Loading(done, total)),
        **options,
    )
    ready = Ready(
        sizes=llm.engine.config,
        executor=llm.executor,
        dtype=llm.dtype,
        kv_dtype=llm.kv_dtype,
        activations=llm.activations,
        contracts=llm.plan.contracts,
        packed=None if llm.packed is None else str(llm.packed.path),
        logs=line.take_logs(),
    )
    line.send(ready)
    return llm


def _told(error: Exception) -> Packed:
    """The error of one request. The log has the traceback of a bug."""
    told = packed(error)
    if told[0] == BugError.__name__:
        _log.error("a request ends by a bug; others go on\n%s", "".join(traceback.format_exception(error)))
    return told


class Worker:
    """The open requests of this process's engine."""

    def __init__(self, line: _Line, llm: LLM, clock: Callable[[], float] = perf_counter) -> None:
        self._line = line
        self._clock = clock
        self._llm = llm
        self._engine = llm.engine
        self._open: dict[str, bool] = {}  # by id: whether each step tells how far the prompt is
        self._waiting: set[str] = set()  # those whose beginning was not told
        self._watched: set[str] = set()  # those whose callers see tokens as they come
        self._last_told = clock()
        self._updates: list[RequestUpdate] = []
        self._replays: dict[str, ReplayReader] = {}
        self._replayed: list[Replayed | ComparisonEnded] = []
        self._formed: dict[str, tuple[Asked, PendingGrammar]] = {}  # in order; compiled beside
        self._comparisons: dict[str, Comparing] = {}  # the first one is computed; each holds memory only then
        self._next_comparison = 0.0  # on the clock, while requests are computed

    def serve(self) -> None:
        """Serve until the connection ends. Errors of the engine pass through."""
        while True:
            for command in self._commands():
                self._receive(command)
            self._begin_formed()
            if self._engine.has_work:
                is_watched = bool(self._watched or self._replays)
                prompt_step_s = PROMPT_STEP_S if any(self._open.values()) else inf
                self._engine.advance(is_watched=is_watched, prompt_step_s=prompt_step_s)
            elif not self._comparisons:
                self._llm.check_ranks()
            if self._comparisons:
                self._compare()
            self._tell()

    def _commands(self) -> list[ToEngine]:
        """The commands that have arrived. Without work, waits for some, or until the ranks are to be checked."""
        idle_s = _IDLE_LOOK_S if self._llm.tensor_parallel_size > 1 else None
        wait_s = 0.0 if self._engine.has_work or self._comparisons else _FORM_LOOK_S if self._formed else idle_s
        return self._line.take(wait_s)

    def _receive(self, command: ToEngine) -> None:
        """Obey a command, or keep it until the form of its answer is compiled: no step waits for that."""
        match command:
            case Request() | ReplayCommand() | Compare():
                request = request_of(command)
                try:
                    if (form := request.params.structured_outputs) is not None:
                        self._formed[request.request_id] = command, self._engine.admission.grammars.ask(form)
                        return
                    self._begin(command)
                except Exception as error:  # noqa: BLE001 - it ends this request alone
                    self._refuse(command, error)
            case Abort(request_id):
                self._abort(request_id)
            case _:
                raise AssertionError(f"no command for a model that is loaded: {type(command).__name__}")

    def _begin_formed(self) -> None:
        """Begin what waited for a form that is compiled by now, in the order in which it came."""
        for request_id, (command, asked) in list(self._formed.items()):
            try:
                if (grammar := asked.grammar) is None:
                    continue
                self._begin(command, grammar)
            except Exception as error:  # noqa: BLE001 - it ends this request alone
                self._refuse(command, error)
            del self._formed[request_id]
            asked.leave()

    def _begin(self, command: Asked, grammar: "Grammar | None" = None) -> None:
        """Errors of the request pass through."""
        match command:
            case Request() as request:
                self._engine.add_request(request, grammar)
                self._open[request.request_id] = request.tells_progress
                self._waiting.add(request.request_id)
                if request.is_watched:
                    self._watched.add(request.request_id)
            case ReplayCommand(request, choice, token_ids):
                assert token_ids is not None, "an answer to generate comes as a Request"
                replay = self._engine.replay(request, choice, token_ids, rows=_REPLAYED_ROWS, grammar=grammar)
                self._replays[request.request_id] = replay
            case Compare():
                beside = self._llm.engine_beside
                steps = comparing(beside, command, _REPLAYED_ROWS, grammar, lambda: not self._engine.has_work)
                self._comparisons[command.request.request_id] = steps

    def _refuse(self, command: Asked, error: Exception) -> None:
        request_id, told = request_of(command).request_id, _told(error)
        match command:
            case Request():
                self._engine.abort(request_id)  # of one that was added in part
                self._updates.append(RequestUpdate(request_id, (), ended=True, refused=told))
            case ReplayCommand():
                self._replayed.append(Replayed(request_id, None, None, told))
            case Compare():
                self._replayed.append(ComparisonEnded(request_id, None, told))

    def _abort(self, request_id: str) -> None:
        if request_id in self._formed:
            command, asked = self._formed.pop(request_id)
            asked.leave()
            if isinstance(command, Request):
                chunks = tuple(StreamChunk(index, "", (), "abort") for index in range(command.params.n))
                self._updates.append(RequestUpdate(request_id, chunks, ended=True))
        elif request_id in self._comparisons:
            self._comparisons.pop(request_id).close()
        elif request_id in self._replays:
            self._engine.abort_reading(self._replays.pop(request_id).request)
        elif (update := self._engine.abort(request_id)) is not None:
            self._updates.append(update)
            self._forget(request_id)

    def _compare(self) -> None:
        """One step of the comparison that came first, if it is due: requests have most of the time."""
        begun = self._clock()
        if self._engine.has_work and begun < self._next_comparison:
            return
        self._step_comparison()
        now = self._clock()
        self._next_comparison = now + pause_after(now - begun)

    def _step_comparison(self) -> None:
        request_id, steps = next(iter(self._comparisons.items()))
        try:
            next(steps)
            return
        except StopIteration as end:
            self._replayed.append(ComparisonEnded(request_id, end.value))
        except Exception as error:  # noqa: BLE001 - it ends this comparison alone
            self._replayed.append(ComparisonEnded(request_id, None, _told(error)))
        del self._comparisons[request_id]

    def _tell(self) -> None:
        """Send the updates in one message, if there are any. Beside long work a message says that it goes on."""
        for request_id in list(self._open):
            progress = self._progress(request_id)
            updates = self._engine.take(request_id)
            if progress is not None:
                first = updates[0] if updates else RequestUpdate(request_id, ())
                updates = (replace(first, progress=progress), *updates[1:])
            self._updates += updates
            if updates and updates[-1].ended:
                self._forget(request_id)
        for request_id, replay in list(self._replays.items()):
            if replay.done:
                del self._replays[request_id]
                refused = None if replay.error is None else _told(replay.error)
                self._replayed.append(Replayed(request_id, replay.difference, replay.output, refused))
        logs = self._line.take_logs()
        now = self._clock()
        if self._updates or logs or self._replayed or (self._open and now - self._last_told > _SILENT_S):
            self._line.send(Stepped(self._updates, self._engine.stats(), logs, self._replayed))
            self._updates, self._replayed, self._last_told = [], [], now

    def _progress(self, request_id: str) -> PromptProgress | None:
        """The prompt's progress, when the prompt begins and, if asked for, in each step; else None."""
        if request_id not in self._waiting and not self._open[request_id]:
            return None
        found = self._engine.prompt_progress(request_id)
        if found is not None:
            self._waiting.discard(request_id)
            if found.num_computed == found.num_tokens:
                self._open[request_id] = False  # for the last time
        return found

    def _forget(self, request_id: str) -> None:
        del self._open[request_id]
        self._waiting.discard(request_id)
        self._watched.discard(request_id)
