"""LogWriter: lines of a log written by a thread, so that a reader who does not read stops no request."""

import os
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

MAX_WAITING_BYTES = 1 << 20  # of lines that wait to be written: some 8,000
CLOSE_S = 1.0
_STDERR = 2


class LogWriter:
    """Writes lines to a descriptor, which it closes. `put` never waits and never raises.

    A line is lost if MAX_WAITING_BYTES wait before it, because nobody reads, or if it cannot be written, because a disk
    is full or the reader has gone. `num_lost` counts such lines. The next line that is written comes after the one that
    `tell_lost` makes of how many were lost before it. The thread ends with the process.
    """

    def __init__(self, descriptor: int, tell_lost: Callable[[int], str]) -> None:
        self.num_lost = 0
        self._descriptor = descriptor
        self._tell_lost = tell_lost
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        self._num_told = 0  # of num_lost
        self._is_closed = False
        self._changed = Condition()
        self._thread = Thread(target=self._run, name="karat-log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Have a line written; it comes without its line break."""
        data = f"{line}\n".encode(errors="backslashreplace")
        with self._changed:
            if self._is_closed or self._num_bytes + len(data) > MAX_WAITING_BYTES:
                self.num_lost += 1
                return
            self._waiting.append(data)
            self._num_bytes += len(data)
            self._changed.notify()

    def close(self) -> bool:
        """Wait CLOSE_S seconds at most until all is written; whether it is. Later lines are lost."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._write_all()
        finally:
            os.close(self._descriptor)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                num_lost, data = self.num_lost, self._waiting.popleft()
            missing = num_lost - self._num_told
            if missing and self._write(f"{self._tell_lost(missing)}\n".encode()):
                self._num_told = num_lost
            is_written = self._write(data)
            with self._changed:
                self._num_bytes -= len(data)
                self.num_lost += not is_written

    def _write(self, data: bytes) -> bool:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            return False
        return True


def stderr_copy() -> int:
    """A descriptor of this process's stderr, which stays where it is when descriptor 2 is redirected for a while."""
    return os.dup(_STDERR)


def discard_stderr() -> None:
    """Have what is written to stderr from now on go nowhere: nobody reads it, and the process would wait for ever."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, _STDERR)
    os.close(null)
