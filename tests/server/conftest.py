"""`karat serve` as its users run it, in a process of its own, and what asks it."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted import write_scripted
from tests.text.tools.models import HARMONY, HERMES, MESSAGES

SOURCE = Path(__file__).parents[2] / "src"
START_S = 120  # a machine may be busy


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def events(self) -> list[Any]:
        """The data of a stream, without the [DONE] that ends it."""
        lines = [line for line in self.content.decode().split("\n\n") if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@dataclass
class Running:
    """A server under way. `said` is its stderr so far."""

    process: subprocess.Popen[str]
    port: int = 0
    said: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, path: str, body: Any = None, *, method: str | None = None, timeout: float = 120, **headers: str
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method or ("GET" if body is None else "POST"), path, content, named)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def chat(self, **given: Any) -> Answer:
        return self.ask(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a story."}], **given}
        )

    def text(self, **given: Any) -> Answer:
        return self.ask("/v1/completions", {"prompt": "Once upon a time", **given})

    def gauge(self, name: str) -> float:
        found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", self.ask("/metrics").content.decode(), re.MULTILINE)
        assert found, name
        return float(found[1])

    def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Until it holds; an assertion fails where it does not."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it never came true"
            time.sleep(0.02)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def serving(*args: str, wait: bool = True, program: str = "karat") -> Iterator[Running]:
    """A server of the embedded model, on a port of its own. It is killed at the end if it still runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KARAT_", "HF_", "PYTHON"))}
    process = subprocess.Popen(
        [sys.executable, "-m", program, "serve", "--port", "0", *args],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**kept, "PYTHONPATH": f"{SOURCE}:{SOURCE.parent}", "HF_HUB_OFFLINE": "1"},
    )
    running, opened = Running(process), threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            running.said.append(line)
            if found := re.search(r"https?://\S*:(\d+)/v1 serves", line):
                running.port = int(found[1])
                opened.set()
        opened.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        if wait:
            assert opened.wait(START_S) and running.port, "".join(running.said)
        yield running
    finally:
        process.kill()
        process.wait(30)
        reader.join(30)


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """One for all tests that leave it as it was."""
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A scripted model that knows tools in the form of Hermes and Qwen, and reasons (tests.support.scripted)."""
    folder = write_scripted(tmp_path_factory.mktemp("scripted"), HERMES)
    names = ("--served-model-name", "scripted", "--served-model-name", "also-scripted")
    with serving(str(folder), *names, program="tests.support.scripted_serve") as running:
        yield running


@pytest.fixture(scope="session")
def harmonic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A scripted model that answers in channels, in the form of gpt-oss."""
    folder = write_scripted(tmp_path_factory.mktemp("harmonic"), HARMONY, special=MESSAGES)
    with serving(str(folder), program="tests.support.scripted_serve") as running:
        yield running


@pytest.fixture(scope="session")
def start() -> Callable[..., Any]:
    return serving
