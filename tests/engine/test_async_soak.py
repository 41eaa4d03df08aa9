"""Clients come and go for a while, a fifth of them without a word; then all is where it began."""

import asyncio
import gc
import os
import random
import sys
import threading
import time
from pathlib import Path

import pytest

from karat import AsyncLLM, SamplingParams
from karat.errors import OverloadedError
from tests.engine.remote.test_open_request import at_rest
from tests.engine.test_async_llm import run
from tests.engine.test_rank_faults import descriptors, opened_since
from tests.support.seed import SEED

if sys.platform != "linux":
    pytest.skip("descriptors, threads and memory are read from /proc", allow_module_level=True)

NUM_CLIENTS = 12
MOST_GROWTH = 16 * 1024**2  # bytes: what allocators keep, and not the 100 bytes a token of every answer


def counts(process_id: int) -> tuple[int, int]:
    """Descriptors and threads of a process."""
    folder = Path(f"/proc/{process_id}")
    return len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir()))


def memory(process_id: int) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def client(engine: AsyncLLM, draw: random.Random, deadline: float) -> int:
    """Asks again and again; how many answers it read to their end."""
    num_read = 0
    while time.monotonic() < deadline:
        params = SamplingParams(max_tokens=draw.randint(1, 40), n=draw.choice([1, 1, 2]), ignore_eos=True)
        prompt = [draw.randint(1, 9)] * draw.randint(1, 120)
        leaves_after = draw.randint(0, 10) if draw.random() < 0.2 else None
        try:
            num_updates = 0
            async for update in engine.stream(
                prompt, params, priority=draw.randint(0, 1), salt=draw.choice([None, "a"])
            ):
                num_updates += 1
                num_read += update.output is not None
                if num_updates == leaves_after:
                    break
        except OverloadedError:
            await asyncio.sleep(0.01)
    return num_read


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2, pytest.param(300, marks=pytest.mark.long)])
def test_after_a_soak_all_is_where_it_began(seconds: int) -> None:
    async def soak() -> None:
        async with await AsyncLLM.open(threads=1, max_num_seqs=4, num_blocks=70, max_queue=6) as engine:
            child = engine.process_id
            processes = os.getpid(), child

            async def crowd(for_s: float) -> int:
                deadline = time.monotonic() + for_s
                draws = (random.Random(f"{SEED}-{number}") for number in range(NUM_CLIENTS))
                return sum(await asyncio.gather(*(client(engine, draw, deadline) for draw in draws)))

            await crowd(max(1.0, seconds / 10))  # what caches and pools take, they have then
            await at_rest(engine)
            gc.collect()  # what other tests of this process left, too
            ours, theirs, held = descriptors(), counts(child), [memory(process) for process in processes]
            num_threads = counts(os.getpid())[1]
            assert await crowd(seconds) > 0
            await at_rest(engine)
            gc.collect()
            # Of this process by name: what other tests left in it may end at any time.
            assert opened_since(ours) == [] and counts(os.getpid())[1] <= num_threads
            assert counts(child) == theirs
            for process, before in zip(processes, held, strict=True):
                assert memory(process) - before < MOST_GROWTH

    before = set(threading.enumerate())
    run(soak(), limit_s=120 + 2 * seconds)
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:  # told to end, and not waited for
        thread.join(10)
    assert [thread for thread in left if thread.is_alive()] == []
