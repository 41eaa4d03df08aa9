"""Starter: starts processes that the system kills when this process ends, even if they are stopped.

Linux can send a process a signal when its parent ends (PR_SET_PDEATHSIG), but the parent is the *thread* that started
it, and a thread may end long before its process. So a thread of its own starts the processes, then waits until `end` or
until this process ends. There is no watching process, which could itself be stopped, killed or left behind.
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
from tempfile import TemporaryFile
from typing import TypeVar

from karat.config import environment_of_children

Result = TypeVar("Result")

# The new process first asks for the signal at its parent's end. Until then its own process group protects it: if the
# parent ends while a process of the group is stopped, the system sends the group SIGHUP and SIGCONT.
_SCRIPT = """
import ctypes, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if sys.argv[1] not in sys.path:
    sys.path.insert(0, sys.argv[1])
from importlib import import_module
import_module(sys.argv[2]).main(sys.argv[3:])
"""
ROOT = str(Path(__file__).parents[2])  # the folder to import this package from


class Starter:
    """Starts processes that end when this process ends. Raises OSError where the system refuses a thread."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        try:
            threading.Thread(target=self._serve, name="karat-starter", daemon=True).start()
        except RuntimeError as fault:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from fault

    def start(
        self, module: str, arguments: Sequence[str], descriptors: Sequence[int] = (), *, errors: int | None = None
    ) -> "subprocess.Popen[bytes]":
        """A Python process that calls `module.main(arguments)` and inherits `descriptors`.

        Its stdout and stderr go to this process's stderr. With `errors` (a descriptor), its stderr goes there and its
        stdout is dropped. It imports nothing from the current folder (-P). It does not receive Ctrl-C and Ctrl-Z of the
        terminal. NumPy computes on one thread there: others would spin beside imports and loading. Raises OSError.
        """

        def popen() -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                [sys.executable, "-P", "-c", _SCRIPT, ROOT, module, *arguments],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=2 if errors is None else subprocess.DEVNULL,
                stderr=errors,
                process_group=0,
                env=environment_of_children(),
            )

        return self._call(popen)

    def end(self) -> None:
        """Kill the processes that still run, as the end of this process does. May be called again."""
        self._calls.put(None)

    def _call(self, function: Callable[[], Result]) -> Result:
        """The function's result, computed in the thread, or its exception. An interrupt is raised after it is done."""
        future: Future[Result] = Future()

        def answer() -> None:
            try:
                future.set_result(function())
            except BaseException as fault:  # noqa: BLE001 - raised in the calling thread
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


def run_worker(module: str, arguments: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    """Call `module.main(arguments)` in a process of its own, which may crash. Returns its exit code and its stderr.

    After `limit_s` seconds the process is killed, and the exit code is None. The process has ended when this returns or
    raises. Raises OSError where no process can be started.
    """
    with TemporaryFile() as words:
        starter = Starter()
        try:
            process = starter.start(module, arguments, errors=words.fileno())
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                process.kill()
                process.wait()
        finally:
            starter.end()
        words.seek(0)
        return code, words.read().decode(errors="replace").strip()
