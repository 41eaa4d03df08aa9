"""What happens when ranks die, stop or hang, and when who started them does: a clear error, and nothing left behind.

Covers: karat.engine.ranks.rank, karat.engine.ranks.messages.
"""

import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from karat import LLM, SamplingParams
from karat.children.connection import Connection
from karat.errors import ExecutorError, KaratError, RankError
from karat.ops.native import unavailable_reason
from karat.ranks.processes import Ranks
from tests.engine import tiny
from tests.support.clock import FairClock

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("ranks are watched through /proc", allow_module_level=True)

LONG = SamplingParams(temperature=0, max_tokens=4000, ignore_eos=True)
NOTICED_S = 20.0  # ten times what it takes; of a clock that a busy machine does not drive


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that 4 ranks can share, with a context that takes long to fill."""
    path = tmp_path_factory.mktemp("model")
    return tiny.write_model(
        path, hidden_size=72, num_attention_heads=12, intermediate_size=50, max_position_embeddings=8192
    )


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    made = LLM(folder, tensor_parallel_size=2, threads=1, max_num_seqs=2)
    yield made
    made.close()


def pids(llm: LLM) -> tuple[int, ...]:
    assert llm._ranks is not None
    return llm._ranks.process_ids


def gone(process_ids: tuple[int, ...], within_s: float = NOTICED_S) -> bool:
    """Whether all processes have ended, a zombie among them being none."""
    with FairClock() as clock:
        while (alive := [pid for pid in process_ids if is_alive(pid)]) and clock.seconds < within_s:
            time.sleep(0.02)
    return not alive


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.drawn(1, each=("sent", "delay_s"))
@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (signal.SIGKILL, r"rank 1 \(process \d+\) was killed \(SIGKILL\), so all 2 ranks were ended; .*memory"),
        (signal.SIGSEGV, r"rank 1 \(process \d+\) was killed \(SIGSEGV\)"),
        (signal.SIGSTOP, r"rank 1 \(process \d+\) is stopped"),
    ],
)
@pytest.mark.parametrize("delay_s", [0.0, 0.05])
def test_a_rank_that_dies_or_stops_while_generating(
    sent: signal.Signals, message: str, delay_s: float, llm: LLM
) -> None:
    """Between two steps, and somewhere in one."""
    chunks = llm.stream("Once upon a time", LONG)
    next(chunks)
    processes = pids(llm)
    timer = threading.Timer(delay_s, os.kill, (processes[1], sent))
    with FairClock() as clock:
        if delay_s:
            timer.start()
        else:
            os.kill(processes[1], sent)
        with pytest.raises(RankError, match=message):
            for _ in chunks:
                pass
    assert clock.seconds < NOTICED_S + delay_s
    assert gone(processes, 0)
    with pytest.raises(RankError, match=r"the ranks of this model have ended: rank 1 .*; load it again"):
        llm.generate("again", LONG)


def test_a_rank_that_dies_while_nothing_is_asked_of_it(llm: LLM) -> None:
    llm.check_ranks()
    processes = pids(llm)
    os.kill(processes[0], signal.SIGKILL)

    def watch() -> None:
        with FairClock() as clock:
            while clock.seconds < NOTICED_S:
                llm.check_ranks()

    with pytest.raises(RankError, match=r"rank 0 \(process \d+\) was killed \(SIGKILL\)"):
        watch()
    assert gone(processes, 0)
    with pytest.raises(RankError, match="have ended"):
        llm.check_ranks()


def test_a_rank_that_was_stopped_for_a_moment_goes_on(llm: LLM) -> None:
    want = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    chunks = llm.stream("Once upon a time", SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    first = next(chunks)
    os.kill(pids(llm)[0], signal.SIGSTOP)
    threading.Timer(0.4, os.kill, (pids(llm)[0], signal.SIGCONT)).start()
    assert first.text + "".join(chunk.text for chunk in chunks) == want[0].outputs[0].text


def test_the_ranks_end_with_the_object_and_nothing_is_left(folder: Path) -> None:
    before, named = descriptors(), named_memory(os.getpid())  # a library of another test may have some
    llm = LLM(folder, tensor_parallel_size=4, threads=1)
    processes = pids(llm)
    assert len(processes) == 4 and all(map(is_alive, processes))
    assert not any(map(named_memory, processes)) and named_memory(os.getpid()) == named
    del llm
    assert gone(processes)
    assert opened_since(before) == []


def descriptors() -> set[tuple[str, str]]:
    """Each open descriptor with what it leads to: what another test left may be closed at any time."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.add((entry.name, str(entry.readlink())))
    return found


def opened_since(before: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Descriptors that are new and stay: threads that end close theirs a little later."""
    deadline = time.monotonic() + NOTICED_S
    while (new := descriptors() - before) and time.monotonic() < deadline:
        gc.collect()  # a model's file is open until its object is collected
        time.sleep(0.01)
    return sorted(new)


def named_memory(pid: int) -> list[str]:
    """Maps of shared memory that has a name, and could be left behind."""
    return [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm/" in line]


def run_karat(folder: Path, *options: str, under: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    karat_run = [sys.executable, "-m", "karat", "run", str(folder), "Once upon a time", "--tensor-parallel-size", "2"]
    endless = ["--max-tokens", "4000", "--ignore-eos", "--temperature", "0"]
    process = subprocess.Popen(
        [*under, *karat_run, *endless, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.read(1)  # it generates
    return process


def children(pid: int) -> tuple[int, ...]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return tuple(int(child) for task in tasks for child in task.read_text().split())


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_ranks_end_when_who_started_them_is_ended(sent: signal.Signals, folder: Path) -> None:
    process = run_karat(folder)
    ranks = children(process.pid)
    assert len(ranks) == 2
    process.send_signal(sent)
    process.communicate(timeout=600)
    assert process.returncode != 0
    assert gone(ranks)


# Whose orphans come to it and not to the system, as under the first process of a container: no group is orphaned then.
REAPER = """
import ctypes, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
subprocess.call(sys.argv[1:])
signal.pause()
"""


@pytest.mark.parametrize("reaped", [False, True])
def test_ranks_that_are_stopped_end_with_who_started_them(reaped: bool, folder: Path) -> None:
    process = run_karat(folder, under=(sys.executable, "-c", REAPER) if reaped else ())
    started = children(process.pid)[0] if reaped else process.pid
    ranks = children(started)
    assert len(ranks) == 2
    for rank in ranks:
        os.kill(rank, signal.SIGSTOP)
    os.kill(started, signal.SIGKILL)
    try:
        assert gone(ranks)
    finally:
        for rank in filter(is_alive, ranks):
            os.kill(rank, signal.SIGKILL)
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_pause_of_all_is_a_fault_of_none(folder: Path) -> None:
    """As a batch system pauses a job: whoever runs on first finds the others still stopped."""
    process = run_karat(folder)
    ranks = children(process.pid)
    for pid in (*ranks, process.pid):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2.5)
    os.kill(process.pid, signal.SIGCONT)
    time.sleep(0.3)
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
    time.sleep(0.5)
    ended = process.poll()
    process.kill()
    _, said = process.communicate(timeout=600)
    assert ended in (None, 0), said
    assert gone(ranks)


AT_ONCE = """
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, which the tests may run under, has it ignored
from karat.children import starter
# The stop comes before it asks.
starter._SCRIPT = (
    "import os, signal; print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGSTOP); signal.pause()"
)
process = starter.Starter().start("no_module", [])
os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_one_that_is_stopped_before_it_could_ask_for_its_end(tmp_path: Path) -> None:
    with (tmp_path / "pid").open("w+b") as said:
        subprocess.run([sys.executable, "-c", AT_ONCE], stderr=said, check=False, start_new_session=True)
        said.seek(0)
        pid = int(said.read())
    try:
        assert gone((pid,))
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_ranks_outlive_the_thread_that_asked_for_them(folder: Path) -> None:
    made: list[LLM] = []
    thread = threading.Thread(target=lambda: made.append(LLM(folder, tensor_parallel_size=2, threads=1)))
    thread.start()
    thread.join()
    made[0].generate("Once upon a time", SamplingParams(max_tokens=5))
    made[0].close()


def test_the_command_says_which_rank_died_and_how_in_one_line(folder: Path) -> None:
    process = run_karat(folder, "-q")
    ranks = children(process.pid)
    os.kill(ranks[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == RankError.exit_code
    assert re.fullmatch(rf"karat: error: rank \d \(process {ranks[0]}\) was killed \(SIGKILL\), .*\n", errors)
    assert gone(ranks)


def test_an_interrupt_in_a_step_leaves_the_ranks_at_work(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply of the step that nobody waited for is passed over."""
    want = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    assert llm._ranks is not None
    sent, ranks = llm._ranks._ranks._send, llm._ranks._ranks

    def interrupted(rank: int, message: bytes) -> None:
        sent(rank, message)
        ranks._owed[rank] += 1
        if rank == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ranks, "_send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("Something else", LONG)
        ranks._owed[0] -= 1  # counted by who sends, too
    again = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    assert again[0].outputs[0].text == want[0].outputs[0].text


@pytest.mark.drawn(1, each=("name", "number", "before"))
@pytest.mark.parametrize("name", ["send", "receive"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("before", [True, False])
def test_ctrl_c_among_messages_leaves_the_ranks_at_work(
    llm: LLM, name: str, number: int, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real signal before or after the first or second message of a step, to the ranks or from them."""
    want = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    real, calls = getattr(Connection, name), 0

    def signalled(connection: Connection, *message: bytes) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and before:
            signal.raise_signal(signal.SIGINT)
        result = real(connection, *message)
        if calls == number and not before:
            signal.raise_signal(signal.SIGINT)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Connection, name, signalled)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("Something else", LONG)
    again = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    assert again[0].outputs[0].text == want[0].outputs[0].text


def test_a_rank_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks("karat.no_such_module", 2, [0])
    with pytest.raises(RankError, match=r"rank \d \(process \d+\) ended with exit code 1"):
        ranks.exchange([b"", b""])
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with pytest.raises(RankError, match="only 0 of 2 ranks could be started"):
        Ranks("karat.engine.ranks.rank", 2, [0])

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = descriptors()
    monkeypatch.setattr("threading.Thread.start", refuse)
    with pytest.raises(RankError, match=r"only 0 of 2 .* \(Resource temporarily unavailable\); .*ulimit"):
        Ranks("karat.engine.ranks.rank", 2, [0])
    assert opened_since(before) == []


def test_without_the_extension_there_are_no_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("karat.ranks.shared_memory._CHANNEL", None)
    with pytest.raises(ExecutorError, match="tensor parallelism needs the C\\+\\+ extension"):
        LLM(folder, tensor_parallel_size=2, executor="reference")


def test_a_bug_in_a_rank_is_told_with_its_traceback(folder: Path) -> None:
    from karat.engine.ranks.messages import RankDone, Step
    from karat.engine.ranks.rank_model import ParallelModel
    from karat.models.registry import read_config
    from tests.support import parallel

    team = ParallelModel(2)
    try:
        config = read_config(json.loads((folder / "config.json").read_text()))
        team.load(parallel.load_of(folder, [[1, 2]], chunk=8), config)
        with pytest.raises(KaratError, match=r"Traceback[\s\S]*in do"):
            team.command(lambda number: Step(number=number, batch=b"\0"), RankDone)
    finally:
        team.close()
