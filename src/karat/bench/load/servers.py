"""Servers to measure: one that runs somewhere, or one that is started here and sleeps while it is not its turn."""

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from karat.children.starter import Starter
from karat.errors import ExecutorError, UsageError
from karat.http_client import Client, FailedError, HttpResponse

_START_S = 600
_END_S = 30
_LOOK_S = 0.1
_STATES = {
    "karat_state_bytes": "bytes",
    "karat_state_snapshots": "kept",
    "karat_state_snapshots_most": "most_kept",
    "karat_prefix_cache_stateless": "stateless_tokens",
}


class MeasuredServer:
    """A server at `url`. With `command` it is a process of this one: it is stopped outside of `awake`, it ends with
    `close`, and the system kills it when this process ends.
    """

    def __init__(
        self, name: str, url: str, *, headers: Mapping[str, str], command: Sequence[str] | None = None
    ) -> None:
        self.name, self.url, self.command = name, url, command
        self._headers = headers
        self._starter: Starter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - until close
        if command is not None:
            self._starter = Starter()
            module = "karat.bench.load.program"
            self._process = self._starter.start(module, list(command), errors=self._said.fileno())

    def client(self, timeout_s: float) -> Client:
        """A new client. It belongs to the event loop that uses it first."""
        return Client(self.url, headers=self._headers, timeout_s=timeout_s)

    def wait(self, wanted: str | None) -> str:
        """Until it has a model; its name, `wanted` if that is one of those that it serves. ExecutorError, UsageError.

        A server that is only asked for must answer at once.
        """
        end = time.monotonic() + (_START_S if self._process is not None else 0)
        with self.awake():
            while True:
                try:
                    names = asyncio.run(self._models())
                    break
                except FailedError as failure:
                    self._check(str(failure), is_late=time.monotonic() > end)
                    time.sleep(_LOOK_S)
        if wanted is not None and wanted not in names:
            raise UsageError(f"{self.url} serves no model {wanted!r}, but {', '.join(names)}; give --model-name one")
        return names[0] if wanted is None else wanted

    def states(self) -> dict[str, int] | None:
        """Of a Karat whose model keeps states: their bytes, and how many are kept for later prompts. To be awake."""
        try:
            page = asyncio.run(self._get("/metrics")).body.decode(errors="replace")
        except FailedError:
            return None
        found = {name: float(line.split()[1]) for line in page.splitlines() for name in _STATES if _is_of(line, name)}
        return {_STATES[name]: int(value) for name, value in found.items()} or None

    @contextmanager
    def awake(self) -> Iterator[None]:
        """It runs inside the `with`."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._starter is not None:
            self._starter.end()
        self._said.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _check(self, failure: str, *, is_late: bool) -> None:
        """ExecutorError if there is nothing to wait for."""
        if self._process is not None and self._process.poll() is not None:
            raise ExecutorError(f"{self.name} ended with code {self._process.poll()} before it served; {self._end()}")
        if is_late:
            raise ExecutorError(f"{self.name} at {self.url} does not answer /v1/models: {failure}; {self._end()}")

    def _end(self) -> str:
        """The last of what its process wrote."""
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read()[-4000:].decode(errors="replace").splitlines()]
        last = " / ".join([line for line in lines if line][-3:])
        return f"it said: {last}" if last else "look whether it runs and whether the URL is right"

    async def _get(self, path: str) -> HttpResponse:
        client = self.client(timeout_s=30)
        try:
            answer = await client.get(path)
        finally:
            await client.close()
        if answer.status != 200:
            raise FailedError(f"HTTP {answer.status}")
        return answer

    async def _models(self) -> list[str]:
        answer = await self._get("/v1/models")
        try:
            names = [one.id for one in msgspec.json.decode(answer.body, type=_Models).data]
        except msgspec.DecodeError:
            raise FailedError("/v1/models is not of OpenAI's form") from None
        if not names:
            raise FailedError("it serves no model yet")
        return names


def _is_of(line: str, name: str) -> bool:
    """Whether a line of /metrics is the value of this gauge."""
    return line.startswith(f"{name} ")


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def free_port() -> int:
    """A port of loopback that nobody listens to now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def karat_command(model: str, port: int, *, num_seqs: int, threads: int, options: Sequence[str] = ()) -> list[str]:
    """`karat serve` of this Python."""
    serve = [sys.executable, "-P", "-m", "karat", "serve", model, "--port", str(port), "--quiet", *options]
    return [*serve, "--threads", str(threads), "--max-num-seqs", str(num_seqs)]


def llama_server_command(
    program: str, model: str, port: int, *, num_seqs: int, threads: int, seq_tokens: int
) -> list[str]:
    """llama-server with a slot of seq_tokens tokens for each sequence, and no flag that changes what it computes."""
    found = shutil.which(program)
    if found is None:
        raise UsageError(f"--peer llama-server {program}: there is no such program; give its path, or a URL")
    if not Path(model).is_file():
        raise UsageError(f"--peer llama-server {program}: it reads GGUF files only; give one instead of {model}")
    threads_ = str(threads)
    slots = ["-np", str(num_seqs), "-c", str(num_seqs * seq_tokens)]
    return [found, "-m", model, "--host", "127.0.0.1", "--port", str(port), *slots, "-t", threads_, "-tb", threads_]
