"""EngineProcess: the process of an engine as AsyncLLM sees it: started, sent messages without waiting, watched, ended.

Its death is noticed at once, as its socket closes. A hang is judged by the system's figures: the process is stopped, no
thread of it has run for a long time, or one step takes an hour of processor time. A long prefill is none of these.
Heartbeat messages from within a step are not used: each would wake up the event loop, and only show that the process
runs. The engine watches its own ranks (karat.ranks.processes). Where the system has no /proc, only death is noticed.
"""

import os
import selectors
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from karat.children.connection import Connection, ConnectionEndedError
from karat.children.starter import Starter
from karat.engine.remote.messages import EngineFailed, FromEngine, Loading, Open, Ready, Stepped, ToEngine
from karat.errors import BugError, EngineDiedError, KaratError, RequestError, unpacked
from karat.ranks.vitals import Vitals
from karat.request import shown

MODULE = "karat.engine.remote.worker"
STOPPED_S = 1.5
IDLE_S = 30.0  # of no thread with work to do; a step waits for a disk at the most, which is no idleness
VAIN_S = 3600.0  # of processor time of the busiest thread in one step
_LOOK_S = 0.1  # while it loads
_GRACE_S = 1.0  # until the system has ended it
_EXIT_S = 0.1  # until one that has said why it ends has ended
_KILLED_MEANS: dict[int, str] = {
    signal.SIGKILL: "the system does that when memory runs out: use a smaller model, cache or context",
    signal.SIGBUS: "a file of the model became shorter or unreadable while it was in use: see whether it is whole",
}

_encoder = msgspec.msgpack.Encoder(enc_hook=lambda value: _plain(value))


def encoded(command: ToEngine) -> bytes:
    """A message encoded for `EngineProcess.tell`. RequestError for a request with text that is not valid Unicode."""
    try:
        return _encoder.encode(command)
    except UnicodeEncodeError as error:
        raise RequestError(f"{shown(error.object)} of the request is no valid Unicode; take it out") from error


def _plain(value: object) -> object:
    """Values of subclasses of numbers and str (NumPy's float64 is a float) as plain Python values."""
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"no message holds a {type(value).__name__}")


class EngineProcess:
    """The constructor starts the process, or raises EngineDiedError. It ends with `close` or with this object."""

    def __init__(self, opening: Open) -> None:
        self._decoder: Any = msgspec.msgpack.Decoder(FromEngine)
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours)
        lifeline, held = os.pipe()
        starter = None
        try:
            starter = Starter()
            given = theirs.fileno(), lifeline
            self._process = starter.start(MODULE, [*map(str, given)], given)
        except BaseException as fault:
            _end(self._connection, None, starter, held)
            if isinstance(fault, OSError):
                raise EngineDiedError(
                    f"the engine's process could not be started ({fault.strerror}); raise the limits (ulimit -u, -n)"
                ) from fault
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self._end = weakref.finalize(self, _end, self._connection, self._process, starter, held)
        self._vitals = Vitals(self.process_id)
        self._num_messages = 0  # that went either way
        self._stirred = time.monotonic()  # when it was last heard, or told something
        with suppress(ConnectionEndedError):  # `ready` says why it ended
            self._connection.send(encoded(opening))

    @property
    def process_id(self) -> int:
        return self._process.pid

    def ready(self, progress: Callable[[int, int], None] | None) -> Ready:
        """The engine's message that the model is loaded. Waits for it. Errors of loading are raised here."""
        while True:
            self._await_message()
            try:
                message = self._decoder.decode(self._connection.receive())
            except ConnectionEndedError:
                raise self.cause_of_end() from None
            match message:
                case Loading(done, total):
                    if progress is not None:
                        progress(done, total)
                case EngineFailed():
                    raise raised(message)
                case Ready():
                    return message
                case _:
                    raise AssertionError(f"no message before a model: {message}")

    def _await_message(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            while not (self._connection.has_more or selector.select(_LOOK_S)):
                if error := self.look(has_work=False):
                    raise error

    def fileno(self) -> int:
        return self._connection.fileno()

    def take(self) -> list[Stepped | EngineFailed]:
        """The messages that have arrived, without waiting. Raises ConnectionEndedError."""
        messages = self._connection.take()
        self._num_messages += len(messages)
        self._stirred = time.monotonic()
        decoded = [self._decoder.decode(message) for message in messages]
        if decoded and isinstance(decoded[-1], EngineFailed):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_S)  # it ends by itself, with its own exit code
        return decoded

    def tell(self, command: bytes | None = None) -> bool:
        """Send a message after the unsent rest, without waiting.

        Returns whether all was sent. `take` notices a closed end.
        """
        if command is not None:
            self._num_messages += 1
            self._stirred = time.monotonic()
        with suppress(ConnectionEndedError):
            return self._connection.offer(command)
        return True

    def look(self, *, has_work: bool) -> EngineDiedError | None:
        """The reason if the engine hangs, else None. To be called a few times a second while there is work."""
        vitals = self._vitals
        vitals.look(self._num_messages)
        if vitals.stopped_s > STOPPED_S:
            return self._died("is stopped (SIGSTOP or a debugger)")
        if has_work and vitals.idle_s > IDLE_S < time.monotonic() - self._stirred:
            return self._died(f"has done nothing for {IDLE_S:g} s")
        if has_work and vitals.vain_s > VAIN_S:
            return self._died(f"has had {VAIN_S:g} s of processor time for one step")
        return None

    def cause_of_end(self) -> EngineDiedError:
        """Why the process ended. To be called after its connection has ended."""
        try:
            code = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return self._died("closed its connection")
        if code >= 0:
            return self._died(f"ended with exit code {code}", "its last words are above")
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        advice = "see whether another program ended it; if not, please report it"
        return self._died(f"was killed ({name})", _KILLED_MEANS.get(-code, advice))

    def close(self) -> None:
        """Kill the process (it has nothing to clean up) and wait for its end.

        Its ranks end too. May be called again.
        """
        self._end()

    def _died(self, what: str, advice: str = "start it again") -> EngineDiedError:
        return EngineDiedError(f"the engine (process {self.process_id}) {what}; {advice}")


def raised(failure: EngineFailed) -> KaratError:
    """The error that the engine reported, of its own class; EngineDiedError for a bug."""
    error = unpacked(*failure.error)
    if isinstance(error, BugError):
        return EngineDiedError(f"the engine ended by a bug; please report it: {error}")
    return error


def _end(
    connection: Connection, process: "subprocess.Popen[bytes] | None", starter: Starter | None, lifeline: int
) -> None:
    connection.close()
    os.close(lifeline)
    if process is not None:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    if starter is not None:
        starter.end()
