"""What happens when AsyncLLM's process, or a rank of it, dies, stops or hangs; and when who started it does."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from karat import AsyncLLM, SamplingParams
from karat.children import starter
from karat.engine.remote import client as async_engine
from karat.engine.remote import process as async_process
from karat.errors import EngineDiedError, UsageError
from karat.ops.native import unavailable_reason
from karat.receipts import fingerprint
from tests.engine.test_async_llm import GREEDY, PROMPTS, run
from tests.engine.test_rank_faults import NOTICED_S, children, descriptors, gone, is_alive, opened_since
from tests.support.clock import FairClock

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("processes are watched through /proc", allow_module_level=True)

LONG = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)


def ranks_of(llm: AsyncLLM) -> tuple[int, ...]:
    return children(llm.process_id)


async def all_end(llm: AsyncLLM, act: Callable[[], None]) -> set[str]:
    """What four open streams say, and one more request, after `act`: the message of their EngineDiedError."""

    async def read(updates: Any) -> str:
        try:
            async for _ in updates:
                pass
        except EngineDiedError as error:
            return str(error)
        return "it went on"

    streams = [llm.stream(prompt, LONG) for prompt in PROMPTS]
    for stream in streams:
        await anext(stream)
    act()
    with FairClock() as clock:
        said = set(await asyncio.gather(*map(read, streams)))
        assert clock.seconds < NOTICED_S
    assert not llm.healthy and said == {str(llm.failure)}
    return said | {await read(llm.stream(PROMPTS[0], LONG))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (signal.SIGKILL, r"the engine (process {}) was killed (SIGKILL); the system does that when memory runs out"),
        (signal.SIGTERM, r"the engine (process {}) was killed (SIGTERM)"),
        (signal.SIGSTOP, r"the engine (process {}) is stopped (SIGSTOP or a debugger)"),
    ],
)
def test_its_death_is_one_error_for_all_and_it_starts_again(sent: signal.Signals, said: str) -> None:
    async def die() -> None:
        async with await AsyncLLM.open(threads=1) as llm:
            want = await llm.generate(PROMPTS[0], GREEDY)
            process_id = llm.process_id
            (message,) = await all_end(llm, lambda: os.kill(process_id, sent))
            assert message.startswith(said.format(process_id)) and gone((process_id,), 0)
            await llm.restart()
            assert llm.healthy and llm.process_id != process_id and (await llm.stats()).num_steps == 0
            again = await llm.generate(PROMPTS[0], GREEDY)
            assert again.outputs == want.outputs
            await llm.restart()  # nothing, while it lives
            os.kill(llm.process_id, signal.SIGKILL)
            with pytest.raises(EngineDiedError):
                await llm.generate(PROMPTS[0], LONG)
            for _ in range(2):
                with pytest.raises(EngineDiedError, match=r"died again within a minute, .* was killed \(SIGKILL\)"):
                    await llm.restart()

    run(die())


@pytest.mark.slow
def test_one_that_was_stopped_for_a_moment_goes_on() -> None:
    async def stop() -> None:
        async with await AsyncLLM.open(threads=1) as llm:
            want = await llm.generate(PROMPTS[0], LONG)
            stream = llm.stream(PROMPTS[0], LONG)
            await anext(stream)
            os.kill(llm.process_id, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(0.6, os.kill, llm.process_id, signal.SIGCONT)
            (output,) = [update.output async for update in stream if update.output]
            assert output.outputs == want.outputs

    run(stop())


def test_deaths_a_minute_apart_are_not_final(monkeypatch: pytest.MonkeyPatch) -> None:
    async def die() -> None:
        async with await AsyncLLM.open(threads=1) as llm:
            for _ in range(3):
                os.kill(llm.process_id, signal.SIGKILL)
                with pytest.raises(EngineDiedError):
                    await llm.generate(PROMPTS[0], LONG)
                await llm.restart()

    monkeypatch.setattr(async_engine, "FINAL_S", 0.0)
    run(die())


@pytest.mark.slow
def test_death_while_nothing_is_asked() -> None:
    async def die() -> None:
        async with await AsyncLLM.open(threads=1) as llm:
            os.kill(llm.process_id, signal.SIGSTOP)
            with FairClock() as clock:
                while llm.healthy and clock.seconds < NOTICED_S:
                    await asyncio.sleep(0.01)
            assert "is stopped" in str(llm.failure)

    run(die())


@pytest.mark.drawn(1)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_the_death_of_a_rank_is_the_engines(sent: signal.Signals) -> None:
    async def die() -> None:
        async with await AsyncLLM.open(threads=1, tensor_parallel_size=2) as llm:
            ranks = ranks_of(llm)
            (message,) = await all_end(llm, lambda: os.kill(ranks[1], sent))
            what = "was killed (SIGKILL)" if sent == signal.SIGKILL else "is stopped"
            assert message.startswith(f"rank 1 (process {ranks[1]}) {what}")
            assert gone((llm.process_id, *ranks))
            await llm.restart()
            os.kill(ranks_of(llm)[0], signal.SIGKILL)  # while it is idle
            with FairClock() as clock:
                while llm.healthy and clock.seconds < NOTICED_S:
                    await asyncio.sleep(0.01)
            assert "rank 0" in str(llm.failure)

    run(die())


WORKER = """
import time
from karat.engine.remote import worker as async_worker
from karat.engine.engine import Engine

advance = Engine.advance

def slow(engine, **how):
    if any(entry.request.priority for entry in engine._entries.values()):
        end = time.monotonic() + 3
        while time.monotonic() < end:
            {}
    advance(engine, **how)

Engine.advance = slow
main = async_worker.main
"""


def use_worker(folder: Path, monkeypatch: pytest.MonkeyPatch, in_a_step: str) -> None:
    """A process whose steps for requests with a priority take three seconds."""
    (folder / "worker_of_a_test.py").write_text(WORKER.format(in_a_step))
    monkeypatch.setattr(starter, "ROOT", str(folder))
    monkeypatch.setattr(async_process, "MODULE", "worker_of_a_test")
    monkeypatch.setattr(async_process, "IDLE_S", 0.6)


@pytest.mark.slow
def test_a_long_step_is_no_hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait() -> None:
        async with await AsyncLLM.open(threads=1) as llm:
            began = time.monotonic()
            params = SamplingParams(temperature=0, max_tokens=1)
            slow = await llm.generate(PROMPTS[0], params, priority=1)
            assert time.monotonic() - began >= 3
            assert slow.outputs == (await llm.generate(PROMPTS[0], params)).outputs

    use_worker(tmp_path, monkeypatch, "pass")
    run(wait())


def test_a_step_that_does_nothing_is_hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait() -> None:
        async with await AsyncLLM.open(threads=1) as llm:
            await asyncio.sleep(1.0)  # idle for longer than it may be with work to do
            await llm.generate(PROMPTS[0], GREEDY)
            with pytest.raises(EngineDiedError, match=r"has done nothing for 0\.6 s"):
                await llm.generate(PROMPTS[0], GREEDY, priority=1)

    use_worker(tmp_path, monkeypatch, "time.sleep(1)")
    run(wait())


def test_a_bug_in_the_engine_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        async with await AsyncLLM.open(threads=1) as llm:
            with pytest.raises(EngineDiedError, match=r"(?s)ended by a bug; please .*line.*ZeroDivisionError"):
                await llm.generate(PROMPTS[0], GREEDY, priority=1)

    use_worker(tmp_path, monkeypatch, "1 // 0")
    run(fail())


def test_a_process_that_ends_while_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker_of_a_test.py").write_text("import sys\ndef main(arguments):\n    sys.exit(3)\n")
    monkeypatch.setattr(starter, "ROOT", str(tmp_path))
    monkeypatch.setattr(async_process, "MODULE", "worker_of_a_test")
    with pytest.raises(EngineDiedError, match=r"the engine \(process \d+\) ended with exit code 3; its last words"):
        AsyncLLM()


@pytest.mark.slow
def test_closing_ends_what_is_open_and_leaves_nothing() -> None:
    async def close() -> None:
        gc.collect()
        before = descriptors()
        for options in ({}, {"tensor_parallel_size": 2}):
            llm = await AsyncLLM.open(threads=1, **options)
            processes = llm.process_id, *ranks_of(llm)
            stream = llm.stream(PROMPTS[0], LONG)
            await anext(stream)
            await llm.close()
            with pytest.raises(UsageError, match="this AsyncLLM was closed before the request had ended"):
                async for _ in stream:
                    pass
            for use in (llm.generate("a"), llm.render([]), llm.tokenize("a"), llm.abort("a"), llm.restart()):
                with pytest.raises(UsageError, match="this AsyncLLM was closed; expected one that is open"):
                    await use
            await llm.close()
            assert gone(processes) and not llm.healthy
        del llm, stream
        assert opened_since(before) == []

    asyncio.run(asyncio.sleep(0))  # what asyncio opens once
    run(close())


@pytest.mark.parametrize("is_hashing", [False, True])
def test_one_that_is_dropped_leaves_no_process(is_hashing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()
    if is_hashing:
        monkeypatch.setattr(fingerprint._Pace, "pause", lambda self: may_go_on.wait(120))
    llm = AsyncLLM(threads=1)
    run(llm.generate("a", GREEDY))
    process_id, found = llm.process_id, llm._fingerprinting.begin()
    del llm
    gc.collect()  # what a loop that is closed had for it
    assert gone((process_id,)) and not (is_hashing and found.done())
    may_go_on.set()
    assert found.result(60)


PROGRAM = """
import asyncio, sys
from karat import AsyncLLM, SamplingParams

LONG = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)
llm = AsyncLLM(threads=1, **eval(sys.argv[1]))

async def tell():
    while True:
        async for update in llm.stream("Once upon a time", LONG):
            print(llm.process_id, flush=True)

try:
    asyncio.run(tell())
except KeyboardInterrupt:
    output = asyncio.run(llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=3)))
    print("awake", llm.healthy, output.outputs[0].text, (asyncio.run(llm.stats())).num_blocks_used, flush=True)
"""


def program(options: str) -> tuple["subprocess.Popen[str]", int]:
    """A program that streams, in a process group of its own; and its engine."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), options], stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.parametrize("options", ["{}", "{'tensor_parallel_size': 2}"])
def test_it_ends_with_who_started_it(options: str) -> None:
    process, engine = program(options)
    below = children(engine)
    assert is_alive(engine) and len(below) == (2 if "2" in options else 0)
    os.kill(engine, signal.SIGSTOP)
    process.kill()
    process.communicate()
    assert gone((engine, *below))


def test_ctrl_c_is_for_who_started_it() -> None:
    process, engine = program("{}")
    os.killpg(process.pid, signal.SIGINT)
    os.kill(engine, signal.SIGINT)
    said, _ = process.communicate(timeout=300)
    assert said.splitlines()[-1] == "awake True , there was 0"
    assert process.returncode == 0 and gone((engine,))
