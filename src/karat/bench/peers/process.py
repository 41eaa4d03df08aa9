"""A peer in a process of its own, which is stopped while it is not its turn.

What an engine leaves running between its calls (threads that spin before they sleep, buffers in the caches) would
count against the other one, and two libraries in one process may share a thread pool or an allocator.
"""

import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.bench.peers.api import Peer
from karat.bench.sides import Prompt, Sample
from karat.config import safe_path
from karat.errors import ExecutorError, KaratError

_PR_SET_PDEATHSIG = 1
_SECONDS_TO_END = 10


class PeerProcess:
    """Does what the peer that `load` returns does; `load` runs in the other process and must be picklable.

    Errors are those of the peer; ExecutorError if its process ends. Its temporary files go when the process does,
    however that ends.
    """

    def __init__(self, load: Callable[[], Peer]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._folder = tempfile.TemporaryDirectory(prefix="karat-bench-")
        arguments = (theirs, load, os.getpid(), self._folder.name)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        atexit.register(self._kill)  # else Python waits at its end for a process that stands still
        try:
            with safe_path():
                self._process.start()
            theirs.close()
            with self._turn():
                self.name, self.version, self.details = self._receive()
        except BaseException:
            self._kill()
            raise

    def prefill(self, prompt: Prompt) -> Sample:
        sample: Sample = self._call("prefill", prompt)
        return sample

    def start(self, prompts: Sequence[Prompt], num_steps: int) -> None:
        self._call("start", prompts, num_steps)

    def steps(self, count: int) -> list[Sample]:
        samples: list[Sample] = self._call("steps", count)
        return samples

    def stop(self) -> None:
        self._call("stop")

    def logits(self, prompt: Prompt) -> NDArray[np.float32] | None:
        logits: NDArray[np.float32] | None = self._call("logits", prompt)
        return logits

    def close(self) -> None:
        if self._process.is_alive():
            self._signal("SIGCONT")
            with suppress(OSError):
                self._connection.send(("close", ()))
            self._process.join(_SECONDS_TO_END)
        self._kill()

    def _kill(self) -> None:
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()
        self._connection.close()
        self._folder.cleanup()
        atexit.unregister(self._kill)

    def _call(self, method: str, *args: object) -> Any:
        with self._turn():
            try:
                self._connection.send((method, args))
            except OSError as fault:
                raise self._ended() from fault
            return self._receive()

    def _receive(self) -> Any:
        try:
            fault, result = self._connection.recv()
        except (EOFError, OSError) as end:
            raise self._ended() from end
        if fault is not None:
            raise fault
        return result

    def _ended(self) -> ExecutorError:
        self._process.join(_SECONDS_TO_END)
        return ExecutorError(
            f"the peer's process ended with code {self._process.exitcode} while it was asked for something; "
            "what it wrote to stderr says more"
        )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The other process runs inside, and stands still outside."""
        self._signal("SIGCONT")
        try:
            yield
        finally:
            self._signal("SIGSTOP")

    def _signal(self, name: str) -> None:
        """Only where the end of a process can be tied to its parent's: elsewhere it just waits for its turn."""
        if sys.platform == "linux" and self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, getattr(signal, name))


def _serve(connection: Connection, load: Callable[[], Peer], parent: int, folder: str) -> None:
    """The other process: answers calls until it is told to close."""
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    if sys.platform == "linux":  # a process that stands still would never see that its parent is gone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
    fault, peer = _result_of(load)
    connection.send((fault, None if fault else (peer.name, peer.version, peer.details)))
    while fault is None:
        try:
            method, args = connection.recv()
        except EOFError:  # the parent has gone
            method, args = "close", ()
        if method == "close":
            peer.close()
            return
        connection.send(_result_of(getattr(peer, method), *args))


def _result_of(function: Callable[..., Any], *args: object) -> tuple[KaratError | None, Any]:
    """An error, or None and what came out; other libraries raise whatever they like."""
    try:
        return None, function(*args)
    except KaratError as fault:
        return fault, None
    except Exception as fault:  # noqa: BLE001
        return ExecutorError(f"the peer failed: {type(fault).__name__}: {fault}"), None
