"""The native executor's threads, as a program meets them: several engines, Python threads, forks, the end of all.

What the pool itself promises is tests/native/pool_test.cpp's.
"""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from karat import LLM
from karat.batch import plain_batch
from karat.errors import ExecutorError, UsageError
from karat.machine.extension import native
from karat.ops.native import NativeOps, unavailable_reason
from tests.engine.tiny import GREEDY, PROMPTS, SAMPLED, tokens, write_model

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


def load(folder: Path, threads: int | None = None) -> LLM:
    return LLM(folder, executor="native", threads=threads)


def run_python(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A program of its own, which must end by itself."""
    command = [sys.executable, "-W", "error::DeprecationWarning:karat", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_engines_with_different_threads_take_turns_and_agree(folder: Path) -> None:
    engines = [load(folder, threads) for threads in (1, 2, 3, 2)]
    want = tokens(engines[0].generate(PROMPTS, SAMPLED))
    for _ in range(3):
        for llm in engines:
            assert tokens(llm.generate(PROMPTS, SAMPLED)) == want
    del engines[1]  # its threads are still another engine's
    assert tokens(engines[-1].generate(PROMPTS, SAMPLED)) == want


def test_python_threads_with_an_engine_each_agree(folder: Path) -> None:
    want = tokens(load(folder, 1).generate(PROMPTS, GREEDY))
    start = threading.Barrier(4)

    def work(threads: int) -> list[list[tuple[int, ...]]]:
        llm = load(folder, threads)
        start.wait()
        return [tokens(llm.generate(PROMPTS, GREEDY)) for _ in range(3)]

    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(work, (1, 2, 3, 2))) == [[want] * 3] * 4


def test_engines_are_loaded_and_dropped_while_another_generates(folder: Path) -> None:
    llm = load(folder, 2)
    want = tokens(llm.generate(PROMPTS, GREEDY))
    stop = threading.Event()

    def others() -> int:
        count = 0
        while not stop.is_set():
            load(folder, 2 + count % 2)
            count += 1
        return count

    with ThreadPoolExecutor(1) as executor:
        loaded = executor.submit(others)
        try:
            for _ in range(5):
                assert tokens(llm.generate(PROMPTS, GREEDY)) == want
        finally:
            stop.set()
        assert loaded.result() > 0


def test_a_plan_is_not_run_by_two_threads_at_once() -> None:
    """Its registers would mix; the second is told, before anything is touched."""
    plan = native().Plan("generic", 1)
    x = plan.input(8192)
    out = plan.rms_norm(x, native().vector(np.ones(8192, np.float32)), 1e-6, False)
    plan.finish(2048, 0, 1, 1, [x, out])
    step = plain_batch(range(2048)).flat
    start = threading.Barrier(2)

    def run() -> str:
        start.wait()
        for _ in range(30):
            try:
                plan.run(step)
            except RuntimeError as refusal:
                return str(refusal)
        return ""

    with ThreadPoolExecutor(2) as executor:
        messages = [task.result() for task in [executor.submit(run), executor.submit(run)]]
    assert any("another thread is running a step" in message for message in messages)
    plan.run(step)  # and afterwards it is free again


FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore")  # Python's own, of forking a process with threads
from karat import LLM
from karat.errors import ExecutorError
from tests.engine.tiny import GREEDY, PROMPTS, tokens
llm = LLM(sys.argv[1], executor="native", threads=int(sys.argv[2]))
want = tokens(llm.generate(PROMPTS, GREEDY))
child = os.fork()
if child == 0:
    try:
        llm.generate(PROMPTS, GREEDY)
    except ExecutorError as refusal:
        print(refusal, flush=True)
        fresh = LLM(sys.argv[1], executor="native", threads=int(sys.argv[2]))  # what the message asks for
        os._exit(0 if tokens(fresh.generate(PROMPTS, GREEDY)) == want else 4)
    os._exit(3)
_, status = os.waitpid(child, 0)
assert tokens(llm.generate(PROMPTS, GREEDY)) == want
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_child_is_refused_and_loads_its_own(folder: Path, threads: int) -> None:
    done = run_python(FORKED, folder, str(threads))
    assert done.returncode == 0, done.stderr
    assert "was forked from one that had loaded the model" in done.stdout
    assert "load the model after forking" in done.stdout


ENDS = {
    "an engine is alive": "",
    "an engine is in a cycle": "llm.me = llm",
    "an exception ends the program": "raise SystemExit(0)",
    "another thread is generating": """
import threading
def forever():
    while True:
        llm.generate(PROMPTS, GREEDY)
threading.Thread(target=forever, daemon=True).start()
""",
    "a result is alive": "import gc; rows = [o for o in gc.get_objects() if type(o).__name__ == 'ndarray']",
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_process_ends_cleanly(folder: Path, end: str) -> None:
    code = f"""
import sys
from karat import LLM
from tests.engine.tiny import GREEDY, PROMPTS
llm = LLM(sys.argv[1], executor="native", threads=3)
llm.generate(PROMPTS, GREEDY)
print("done", flush=True)
{end}
"""
    done = run_python(code, folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("threads", [0, -1])
def test_no_threads_are_refused(folder: Path, threads: int) -> None:
    with pytest.raises(UsageError, match=f"threads={threads}"):
        load(folder, threads)
    with pytest.raises(ExecutorError, match=f"threads={threads}: "):
        NativeOps(threads=threads)


def test_more_threads_than_a_pool_may_have_are_refused(folder: Path) -> None:
    with pytest.raises(ExecutorError, match=r"threads=1025: .* 1024"):
        load(folder, 1025)


@pytest.mark.skipif(sys.platform != "linux", reason="knows only how Linux refuses threads")
def test_threads_that_the_system_refuses_are_said(folder: Path) -> None:
    if "libasan" in Path("/proc/self/maps").read_text(encoding="utf-8"):
        pytest.skip("AddressSanitizer needs all addresses there are")
    code = """
import resource, sys
from pathlib import Path
from karat.errors import ExecutorError
from karat.ops.native import NativeOps
from karat.ops.native_plan import PlanRecorder
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
ops = NativeOps(threads=1000)
try:
    PlanRecorder(ops.isa, ops.threads)
except ExecutorError as refusal:
    print(refusal)
PlanRecorder(ops.isa, 2)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert "the system gives this process only" in done.stdout
    assert "of 1000 threads" in done.stdout


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process cannot be kept to a core here")
def test_threads_that_share_a_core_are_not_many_times_slower_than_one(folder: Path) -> None:
    """Two threads that have one core, as where other processes have the rest: each barrier would be 16,000 spins.

    Processor time beside that of one thread in the same process: 38 to 63 times as much where both always run.
    """
    code = """
import os, sys, time
from contextlib import suppress
from karat import LLM, SamplingParams
one, llm = (LLM(sys.argv[1], executor="native", threads=threads) for threads in (1, 2))
params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
want = llm.generate(["a"], params)[0].outputs[0].token_ids
core = {min(os.sched_getaffinity(0))}
for thread in os.listdir("/proc/self/task"):
    with suppress(ProcessLookupError):  # a thread that has ended since
        os.sched_setaffinity(int(thread), core)
def seconds(llm):
    begun = time.process_time()
    for _ in range(20):
        assert llm.generate(["a"], params)[0].outputs[0].token_ids == want
    return time.process_time() - begun
print(seconds(llm) / seconds(one))
"""
    done = run_python(code, folder)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 8
