"""karat._native refuses numbers that would reach outside memory; what used to crash runs in a process of its own."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from karat.ops import rows
from karat.ops.native import unavailable_reason

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

STEP = """
import numpy as np
from karat.machine.extension import native
n = native()
plan = n.Plan("generic", 1)
q = plan.input(16)
(cache,) = n.cache("float32", [0], 32, 1, 16)
plan.kv_write(q, q, cache)
out = plan.attention(q, cache, 0.25, 0, 1, 0, None, 0.0)
plan.finish(1, 0, 1, 32, [out])
plan.write(q, np.ones((1, 16), np.float32))
def run(block, block_size, **other):
    counts = dict(tokens=1, seqs=1, rows=0, size=block_size, groups=1, width=1)
    columns = dict(token_id=0, position=0, start=0, end=1, context=1, reads=-1, writes=-1, slot=0, block=block)
    numbers = counts | columns
    plan.run(np.array(list((numbers | other).values()), np.int32))
"""


def refusal(code: str, error: str = "ValueError") -> str:
    """What a child process says in refusing the last statement of `code`; it must neither crash nor succeed."""
    *before, last = code.strip().splitlines()
    child = "\n".join([*before, "try:", f"    {last}", f"except {error} as refused:", "    print('refused:', refused)"])
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr}"
    assert done.stdout.startswith("refused:"), done.stdout
    return done.stdout


def test_the_step_that_the_refusals_are_about_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEP + "run(1, 16)"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block_size", [33, 2**30, 2**31 - 1])
@pytest.mark.parametrize("block", [0, 1, 2**31 - 1])
def test_blocks_larger_than_the_cache_are_refused(block: int, block_size: int) -> None:
    assert "larger than the cache" in refusal(STEP + f"run({block}, {block_size})")


@pytest.mark.parametrize("block", [-1, 2, 2**31 - 1])
def test_a_block_outside_the_cache_is_refused(block: int) -> None:
    assert "outside the cache" in refusal(STEP + f"run({block}, 16)")


COUNTS = itertools.product(["tokens", "seqs", "rows", "groups", "width"], [-(2**31), -1, 2, 2**31 - 1])


@pytest.mark.drawn(8)
@pytest.mark.parametrize(("count", "number"), [("size", -1), *COUNTS])
def test_counts_that_the_numbers_do_not_have_are_refused(count: str, number: int) -> None:
    assert "no batch" in refusal(STEP + f"run(1, 16, {count}={number})")


def test_numbers_that_end_early_or_late_are_refused() -> None:
    whole = [1, 1, 0, 16, 1, 1, 0, 0, 0, 1, 1, 0, 1]
    for numbers in ([], whole[:4], whole[:-1], [*whole, 0]):
        assert "no batch" in refusal(STEP + f"plan.run(np.array({numbers}, np.int32))")


def test_a_step_without_the_cache_group_is_refused() -> None:
    assert "cache group" in refusal(STEP + "plan.run(np.array([1, 1, 0, 16, 0, 0, 0, 0, 1, 1, -1, -1], np.int32))")


@pytest.mark.parametrize("use", ["plan.write(x, np.ones((1, 2**20), np.float32))", "plan.read(x)"])
def test_a_plan_whose_finish_failed_has_no_registers(use: str) -> None:
    code = f"""
import numpy as np
from karat.machine.extension import native
plan = native().Plan("generic", 1)
x = plan.input(2**20)
try:
    plan.finish(2**31 - 1, 0, 1, 1, [x])
except MemoryError:
    pass
{use}
"""
    assert "not finished" in refusal(code)


@pytest.mark.parametrize("threads", [0, -1])
def test_packing_takes_a_thread(threads: int) -> None:
    code = f"""
import numpy as np
from karat.machine.extension import native
native().pack("F32", 16, 16, np.zeros(1024, np.uint8), {threads})
"""
    assert "threads" in refusal(code)


@pytest.mark.parametrize("row", [[np.nan] * 1000, [np.nan, 1.0, 2.0], [1.0, np.nan, 3.0, np.nan]])
def test_argmax_of_a_row_with_nan_is_an_index(row: list[float]) -> None:
    assert 0 <= rows.argmax(np.array(row, np.float32)) < len(row)
