"""Ranks: processes that the process that uses them starts, watches and ends.

A rank that dies is noticed at once, as its socket closes. A rank that is stopped or hangs is noticed within a
`Patience`, from the system's figures of its threads and its own progress counter. Then all ranks are ended, and the
waiting call raises RankError. If this process ends in any way, the system kills the ranks (karat.children.starter);
where the system cannot, a pipe that only this process holds closes, and the ranks end (karat.ranks.lifeline).
"""

import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, Protocol

from karat.children.connection import Connection, ConnectionEndedError
from karat.children.starter import Starter
from karat.errors import RankError
from karat.ranks.interrupts import InterruptsPutOff
from karat.ranks.vitals import Vitals

_LOOK_S = 0.1
_GRACE_S = 2.0  # for ranks to end by themselves
_KILLED_S = 0.5  # for the system to end a killed rank; it may delay that for a disk, or for lack of a core
_SLOWER = 4  # a rank may take this many times as long as any other: parts and cores differ, but not so much
_ADVICE: dict[int, str] = {
    signal.SIGKILL: "the system does that when memory runs out: use a smaller model, cache or context",
    signal.SIGBUS: "a file of the model became shorter or unreadable while it was in use: check that it is complete",
}
_REPORT = "please report this as a bug of Karat"


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds after which a rank counts as hanging.

    stopped_s: stopped (SIGSTOP, a debugger). idle_s: without using a core. behind_s and vain_s: processor time without
    progress, while all other ranks wait for it, and in general.
    """

    stopped_s: float = 1.5
    idle_s: float = 1.5
    behind_s: float = 1.5
    vain_s: float = 60.0


PATIENCE = Patience()


class Signs(Protocol):
    """Signs of life that ranks report while they work."""

    def is_waiting(self, rank: int) -> bool:
        """Whether the rank sleeps until another rank has done its part."""

    def progress(self, rank: int) -> int:
        """A number that changes while the rank makes progress."""


class Ranks:
    """`size` processes that run `module.main([rank, size, socket, lifeline, *shared])`. Not thread-safe.

    `shared` are descriptors that every rank inherits. Raises RankError where a process cannot be started.
    """

    def __init__(self, module: str, size: int, shared: Sequence[int]) -> None:
        self.size = size
        self._ended: str | None = None
        self._owed = [0] * size  # replies still to come, of this exchange and of interrupted ones
        self._selector = selectors.DefaultSelector()
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        lifeline, self._lifeline = os.pipe()
        self._starter = None
        try:
            self._starter = starter = Starter()
            for rank in range(size):
                ours, theirs = socket.socketpair()
                self._connections.append(Connection(ours))
                with theirs:
                    given = [theirs.fileno(), lifeline, *shared]
                    arguments = [*map(str, (rank, size, *given))]
                    self._processes.append(starter.start(module, arguments, given))
        except OSError as fault:
            self._end(f"only {len(self._processes)} of {size} ranks could be started ({fault.strerror})")
            raise RankError(f"{self._ended}; use fewer, or raise the limits (ulimit -u, -n)") from fault
        except BaseException:
            self._end("starting them was interrupted")
            raise
        finally:
            os.close(lifeline)
        for rank, connection in enumerate(self._connections):
            self._selector.register(connection, selectors.EVENT_READ, rank)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The process id of each rank."""
        return tuple(process.pid for process in self._processes)

    def exchange(
        self,
        messages: Sequence[bytes],
        *,
        signs: Signs | None = None,
        patience: Patience = PATIENCE,
        on_reply: Callable[[bytes], None] = lambda reply: None,
        on_look: Callable[[], None] = lambda: None,
    ) -> list[bytes]:
        """Send each rank its message and wait for one reply of each.

        `on_reply` is called with each reply as it comes, `on_look` ten times a second while waiting.

        Raises RankError if a rank dies or is stopped. With `signs`, also if a rank is idle without waiting for another
        rank, or computes without progress. All ranks have ended then. After an exception from outside (an interrupt),
        the next call passes over the replies that are still to come.
        """
        self._refuse_after_end()
        with InterruptsPutOff():  # else some ranks would wait in a step for ranks that never got the message
            for rank, message in enumerate(messages):
                self._send(rank, message)
                self._owed[rank] += 1
        replies: list[bytes | None] = [None] * self.size
        vitals = [Vitals(process.pid) for process in self._processes]
        looked = time.monotonic()
        while None in replies:
            for key, _ in self._selector.select(_LOOK_S):
                rank, more = key.data, True
                with InterruptsPutOff():
                    while more:
                        reply = self._receive(rank)
                        self._owed[rank] -= 1
                        more = self._connections[rank].has_more
                if self._owed[rank] == 0:
                    replies[rank] = reply
                    on_reply(reply)
            if time.monotonic() - looked >= _LOOK_S:
                self._look([r for r in range(self.size) if replies[r] is None], vitals, signs, patience)
                on_look()
                looked = time.monotonic()
        return [reply for reply in replies if reply is not None]

    def check(self) -> None:
        """Between two exchanges: if a rank has ended, end the others and raise RankError."""
        self._refuse_after_end()
        for rank, process in enumerate(self._processes):
            if process.poll() is not None:
                self._died(rank)

    def close(self) -> None:
        """End the ranks and wait until they have ended. May be called again."""
        self._end("they were closed")

    def _refuse_after_end(self) -> None:
        """Raise RankError with the reason if the ranks have ended."""
        if self._ended:
            raise RankError(f"the ranks of this model have ended: {self._ended}; load it again")

    def _send(self, rank: int, message: bytes) -> None:
        try:
            self._connections[rank].send(message)
        except ConnectionEndedError:
            self._died(rank)
        except BaseException:
            self._end("a message to them was interrupted midway")
            raise

    def _receive(self, rank: int) -> bytes:
        try:
            return self._connections[rank].receive()
        except ConnectionEndedError:
            self._died(rank)
        except BaseException:
            self._end("a message from them was interrupted midway")
            raise

    def _look(self, pending: Sequence[int], vitals: Sequence[Vitals], signs: Signs | None, patience: Patience) -> None:
        """Raise RankError for a rank that hangs."""
        idle = []
        for rank in pending:
            vital = vitals[rank]
            vital.look(signs.progress(rank) if signs else 0)
            if vital.stopped_s > patience.stopped_s:
                self._fail(rank, "is stopped (SIGSTOP or a debugger)", "load the model again")
            if signs and vital.vain_s > patience.vain_s:
                self._fail(rank, f"used {patience.vain_s:g} s of processor time without progress", _REPORT)
            if vital.idle_s > patience.idle_s:
                idle.append(rank)
        if signs is None:
            return
        at_work = [rank for rank in pending if not signs.is_waiting(rank)]
        for rank in idle:
            if rank in at_work:
                self._fail(rank, f"has done nothing for {patience.idle_s:g} s", _REPORT)
        if len(at_work) == 1 < self.size:
            (rank,) = at_work
            usual_s = max(vital.longest_vain_s for other, vital in enumerate(vitals) if other != rank)
            if (limit_s := max(patience.behind_s, _SLOWER * usual_s)) < vitals[rank].vain_s:
                what = f"used {limit_s:.3g} s of processor time without progress, while all others wait for it"
                self._fail(rank, what, _REPORT)
        if idle and len(idle) == len(pending) == self.size:
            self._fail(idle[0], "and all others wait for each other", _REPORT)

    def _died(self, rank: int) -> NoReturn:
        process = self._processes[rank]
        try:
            code = process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._fail(rank, "closed its connection", _REPORT)
        if code >= 0:
            self._fail(rank, f"ended with exit code {code}", "its error output is above")
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        advice = _ADVICE.get(-code, "check whether another program ended it; if not, please report it")
        self._fail(rank, f"was killed ({name})", advice)

    def _fail(self, rank: int, what: str, advice: str) -> NoReturn:
        self._end(f"rank {rank} (process {self._processes[rank].pid}) {what}", at_once=True)
        raise RankError(f"{self._ended}, so all {self.size} ranks were ended; {advice}")

    def _end(self, reason: str, *, at_once: bool = False) -> None:
        if self._ended:
            return
        self._ended = reason
        self._selector.close()
        for connection in self._connections:
            connection.close()
        os.close(self._lifeline)
        deadline = time.monotonic() + (0 if at_once else _GRACE_S)
        if at_once:
            for process in self._processes:
                process.kill()
        for process in self._processes:
            try:
                process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_KILLED_S)
        if self._starter is not None:
            self._starter.end()
