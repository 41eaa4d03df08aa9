"""Processes that the system kills when this one is gone, stopped or not.

Linux can send a process a signal at the end of its parent (PR_SET_PDEATHSIG), by which it means the *thread* that
started it; a thread that computes something may end long before its process does. So processes are started by a thread
of their own, which then waits until it is told to end, or this process does. No process of ours has to watch, and none
can be stopped, killed or left behind in place of the ones it watches.
"""

import errno
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")

# Before anything else the new process asks for its end. Until it has, it is in a process group of its own in this
# session: such a group the system sends SIGHUP and SIGCONT when the parent ends while one of the group is stopped.
_SCRIPT = """
import ctypes, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if sys.argv[1] not in sys.path:
    sys.path.insert(0, sys.argv[1])
from importlib import import_module
import_module(sys.argv[2]).main(sys.argv[3:])
"""
ROOT = str(Path(__file__).parents[2])  # where this package is found


class Starter:
    """Starts processes whose end is tied to its own. Raises OSError where the system refuses a thread."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        try:
            threading.Thread(target=self._serve, name="karat-starter", daemon=True).start()
        except RuntimeError as fault:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from fault

    def start(
        self, module: str, arguments: Sequence[str], descriptors: Sequence[int] = (), *, errors: int | None = None
    ) -> "subprocess.Popen[bytes]":
        """A Python process that calls `module.main(arguments)`, and inherits `descriptors`.

        What it writes goes to this one's stderr; with `errors`, a descriptor, stderr goes there and stdout
        nowhere. It imports nothing from the current folder (-P). Ctrl-C and Ctrl-Z on the terminal are not for it.
        Raises OSError.
        """

        def popen() -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                [sys.executable, "-P", "-c", _SCRIPT, ROOT, module, *arguments],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=2 if errors is None else subprocess.DEVNULL,
                stderr=errors,
                process_group=0,
            )

        return self._call(popen)

    def end(self) -> None:
        """Kill those that are still there, as the end of this process would. May be called again."""
        self._calls.put(None)

    def _call(self, function: Callable[[], Result]) -> Result:
        """What the function returns or raises in the thread; an interrupt is raised once that is known."""
        future: Future[Result] = Future()

        def answer() -> None:
            try:
                future.set_result(function())
            except BaseException as fault:  # noqa: BLE001 - raised where it was asked for
                future.set_exception(fault)

        self._calls.put(answer)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.exception()
            raise

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
