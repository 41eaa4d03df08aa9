"""A peer in a process of its own: it answers, stands still between its turns, and does not outlive anything.

Covers: karat.bench.peers.messages, karat.bench.peers.process.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.bench import session
from karat.bench.peers.process import PeerProcess
from karat.bench.sides import Prompt, Sample
from karat.engine.llm import LLM
from karat.errors import ExecutorError, UsageError

COUNTER = "tests.bench.test_peer_process:Counter"
ROOT = Path(__file__).parents[2]
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc")


@pytest.fixture(autouse=True)
def tests_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the other process, which does not look in the current folder."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


class Counter:
    """A peer whose samples say which process and which call they are of."""

    name, version = "counter", "1"

    def __init__(self) -> None:
        self.details: dict[str, object] = {"pid": os.getpid()}
        self._calls = 0

    def prefill(self, prompt: Prompt) -> Sample:
        self._calls += 1
        return Sample(float(len(prompt)), float(self._calls))

    def start(self, prompts: Sequence[Prompt], num_steps: int) -> None:
        if num_steps > 100:
            raise UsageError("too many steps")
        if num_steps > 50:
            os._exit(7)
        if num_steps > 25:
            raise ZeroDivisionError("oh")

    def steps(self, count: int) -> list[Sample]:
        return [self.prefill([0]) for _ in range(count)]

    def stop(self) -> None:
        self._calls = 0

    def close(self) -> None:
        pass

    def logits(self, prompt: Sequence[int]) -> NDArray[np.float32]:
        return np.asarray(prompt, np.float32)


def refuse() -> Counter:
    raise ExecutorError("no such model")


def state(pid: object) -> str:
    """The letter of /proc: T is stopped; empty for no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return ""


def wait_for(pid: object, *states: str) -> None:
    deadline = time.monotonic() + 600
    while state(pid) not in states:
        assert time.monotonic() < deadline, state(pid)
        time.sleep(0.01)


def test_calls_and_errors_come_through() -> None:
    peer = PeerProcess(COUNTER, {})
    try:
        assert (peer.name, peer.version) == ("counter", "1") and peer.details["pid"] != os.getpid()
        assert peer.prefill([1, 2, 3]) == Sample(3.0, 1.0)
        assert [sample.model_s for sample in peer.steps(2)] == [2.0, 3.0]
        peer.stop()
        assert peer.prefill([1]) == Sample(1.0, 1.0)
        np.testing.assert_array_equal(peer.logits([4, 5]), np.array([4, 5], np.float32))
        with pytest.raises(UsageError, match="too many steps"):
            peer.start([[1]], 101)
        with pytest.raises(ExecutorError, match="the peer failed: ZeroDivisionError: oh"):
            peer.start([[1]], 26)
        assert peer.prefill([1]).model_s == 2.0, "an error ends nothing"
    finally:
        peer.close()


@ON_LINUX
def test_it_stands_still_between_turns_and_ends_when_closed() -> None:
    peer = PeerProcess(COUNTER, {})
    pid = peer.details["pid"]
    wait_for(pid, "T")
    peer.prefill([1])
    wait_for(pid, "T")
    peer.close()
    assert state(pid) == ""
    peer.close()


def test_a_process_that_ends_is_an_error() -> None:
    peer = PeerProcess(COUNTER, {})
    with pytest.raises(ExecutorError, match="the peer's process ended with code 7"):
        peer.start([[1]], 51)
    peer.close()


def write_and_refuse() -> Counter:
    (Path(tempfile.mkdtemp()) / "model.gguf").write_bytes(b"x")
    return refuse()


def test_what_loading_refuses_is_raised_here_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ExecutorError, match="no such model"):
        PeerProcess("tests.bench.test_peer_process:write_and_refuse", {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@ON_LINUX
def test_an_exit_does_not_wait_for_a_peer_that_stands_still(tmp_path: Path) -> None:
    code = (
        "from tests.bench.test_peer_process import COUNTER, PeerProcess\n"
        "if __name__ == '__main__': print((peer := PeerProcess(COUNTER, {})).details['pid'], flush=True); 1 / 0"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 1 and "ZeroDivisionError" in ended.stderr
    assert state(ended.stdout.strip()) == "" and list(tmp_path.iterdir()) == []


@ON_LINUX
def test_a_measurement_that_fails_ends_its_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pids = []

    def deviation(llm: LLM, peer: PeerProcess) -> float:
        pids.append(peer.details["pid"])
        raise ExecutorError("not today")

    monkeypatch.setattr(session, "require_peer", lambda name: None)
    monkeypatch.setattr(session, "LOADER", "tests.bench.test_peer_process:load_counter")
    monkeypatch.setattr(session, "_deviation", deviation)
    with pytest.raises(ExecutorError, match="not today"):
        session.run_bench(session.BenchOptions(shape="tiny", peer="counter", threads=1), lambda text: None)
    assert state(pids[0]) == "" and list(tmp_path.iterdir()) == []


def load_counter(**arguments: object) -> Counter:
    assert arguments["peer"] == "counter" and arguments["shape"] == "tiny", arguments
    return Counter()


@pytest.mark.slow
@ON_LINUX
def test_it_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "import sys; from tests.bench.test_peer_process import COUNTER, PeerProcess\n"
        "if __name__ == '__main__': print(PeerProcess(COUNTER, {}).details['pid'], flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert parent.stdin and parent.stdout
    pid = parent.stdout.readline().strip()
    wait_for(pid, "T")
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    wait_for(pid, "", "Z")
