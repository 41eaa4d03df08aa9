"""A peer in a process of its own, which is stopped while it is not its turn.

An engine leaves things behind between its calls, such as threads that spin before they sleep and buffers in the caches.
They would slow the other side down. And two libraries in one process may share a thread pool or an allocator.
"""

import atexit
import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from karat.bench.peers.api import Peer
from karat.bench.peers.messages import (
    Close,
    Command,
    DecodeSteps,
    Logits,
    LogitsRow,
    PeerFailed,
    PeerLoaded,
    Prefill,
    Reply,
    Samples,
    Start,
    Stop,
)
from karat.bench.sides import Prompt, Sample
from karat.children.connection import Connection, ConnectionEndedError
from karat.children.starter import Starter
from karat.errors import ExecutorError, KaratError, packed, unpacked

_SECONDS_TO_END = 10
_REPLIES = msgspec.msgpack.Decoder(Reply)

R = TypeVar("R", PeerLoaded, Samples, LogitsRow)


class PeerProcess:
    """A peer in another process, as an object of this one. `load`, "module:function", loads it there; it is called with
    `arguments`, values of JSON.

    Raises the errors of the peer; ExecutorError if its process ends or cannot be started. The temporary files are
    removed when the process ends, however it ends.
    """

    def __init__(self, load: str, arguments: Mapping[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="karat-bench-")
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours)
        self._starter = Starter()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self._kill)  # so that its files are removed too
        try:
            with theirs:
                given = [str(theirs.fileno()), self._folder.name, load, json.dumps(arguments)]
                self._process = self._starter.start(__name__, given, [theirs.fileno()])
            with self._turn():
                loaded = self._receive(PeerLoaded)
        except OSError as fault:
            self._kill()
            raise ExecutorError(
                f"a process for the peer cannot be started ({fault.strerror}); end other processes"
            ) from fault
        except BaseException:
            self._kill()
            raise
        self.name, self.version, self.details = loaded.name, loaded.version, dict[str, object](loaded.details)

    def prefill(self, prompt: Prompt) -> Sample:
        return self._call(Prefill(list(prompt)), Samples).samples[0]

    def start(self, prompts: Sequence[Prompt], num_steps: int) -> None:
        self._call(Start(list(map(list, prompts)), num_steps), Samples)

    def steps(self, count: int) -> list[Sample]:
        return self._call(DecodeSteps(count), Samples).samples

    def stop(self) -> None:
        self._call(Stop(), Samples)

    def logits(self, prompt: Prompt) -> NDArray[np.float32] | None:
        values = self._call(Logits(list(prompt)), LogitsRow).values
        return None if values is None else np.frombuffer(values, np.float32)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._signal("SIGCONT")
            with suppress(ConnectionEndedError):
                self._connection.send(msgspec.msgpack.encode(Close()))
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_TO_END)
        self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._starter.end()
        self._connection.close()
        self._folder.cleanup()
        atexit.unregister(self._kill)

    def _call(self, command: Command, kind: type[R]) -> R:
        with self._turn():
            try:
                self._connection.send(msgspec.msgpack.encode(command))
            except ConnectionEndedError as end:
                raise self._ended() from end
            return self._receive(kind)

    def _receive(self, kind: type[R]) -> R:
        try:
            reply = _REPLIES.decode(self._connection.receive())
        except ConnectionEndedError as end:
            raise self._ended() from end
        if isinstance(reply, PeerFailed):
            raise unpacked(*reply.error)
        assert isinstance(reply, kind), f"{type(reply).__name__} for {kind.__name__}"
        return reply

    def _ended(self) -> ExecutorError:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_END)
        return ExecutorError(
            f"the peer's process ended with code {self._process.poll()} while it was asked for something; "
            "what it wrote to stderr says more"
        )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The other process runs inside the `with`, and is stopped outside."""
        self._signal("SIGCONT")
        try:
            yield
        finally:
            self._signal("SIGSTOP")

    def _signal(self, name: str) -> None:
        """Only if the end of a process can be tied to the end of its parent. Otherwise the process only waits for
        its turn.
        """
        if sys.platform == "linux" and self._process is not None and self._process.poll() is None:
            self._process.send_signal(getattr(signal, name))


def main(arguments: Sequence[str]) -> None:
    """The other process: loads the peer, and answers until it is told to close or the parent has ended."""
    descriptor, tempfile.tempdir, load, given = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    connection = Connection(socket.socket(fileno=int(descriptor)))
    commands = msgspec.msgpack.Decoder(Command)
    module, _, function = load.partition(":")
    peer: Peer | None = None
    reply: Reply
    try:
        loaded: Peer = getattr(import_module(module), function)(**json.loads(given))
        peer, reply = loaded, PeerLoaded(loaded.name, loaded.version, loaded.details)
    except Exception as fault:  # noqa: BLE001 - other libraries raise whatever they like
        reply = _failed(fault)
    with suppress(ConnectionEndedError):
        connection.send(msgspec.msgpack.encode(reply))
        while peer is not None and not isinstance(command := commands.decode(connection.receive()), Close):
            try:
                reply = _do(peer, command)
            except Exception as fault:  # noqa: BLE001 - likewise
                reply = _failed(fault)
            connection.send(msgspec.msgpack.encode(reply))
    if peer is not None:
        peer.close()


def _do(peer: Peer, command: Command) -> Reply:
    match command:
        case Prefill(prompt):
            return Samples([peer.prefill(prompt)])
        case Start(prompts, num_steps):
            peer.start(prompts, num_steps)
        case DecodeSteps(count):
            return Samples(peer.steps(count))
        case Logits(prompt):
            row = peer.logits(prompt)
            return LogitsRow(None if row is None else np.asarray(row, np.float32).tobytes())
        case Stop():
            peer.stop()
    return Samples([])


def _failed(fault: Exception) -> PeerFailed:
    if not isinstance(fault, KaratError):
        fault = ExecutorError(f"the peer failed: {type(fault).__name__}: {fault}")
    return PeerFailed(packed(fault))
