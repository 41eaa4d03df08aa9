"""karat._native refuses numbers that would reach outside memory; what used to crash runs in a process of its own."""

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
from karat.ops.native_plan import native
n = native()
plan = n.Plan("generic", 1)
q = plan.input(16)
cache = n.cache("float32", 1, 32, 1, 16)
plan.kv_write(q, q, cache, 0)
out = plan.attention(q, cache, 0, 0.25, 0, 1, 0)
plan.finish(1, 0, 1, 32, [out])
plan.write(q, np.ones((1, 16), np.float32))
zeros = np.zeros(1, np.int32)
def run(block, block_size):
    plan.run(zeros, zeros, zeros, np.array([0, 1], np.int32), np.array([1], np.int32), np.array([[block]], np.int32),
             zeros[:0], block_size)
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


@pytest.mark.parametrize("block_size", [33, 2**33, 2**62, 2**63, 2**64 - 1])
@pytest.mark.parametrize("block", [0, 1, 2**31 - 1])
def test_blocks_larger_than_the_cache_are_refused(block: int, block_size: int) -> None:
    assert "larger than the cache" in refusal(STEP + f"run({block}, {block_size})")


@pytest.mark.parametrize("block", [-1, 2, 2**31 - 1])
def test_a_block_outside_the_cache_is_refused(block: int) -> None:
    assert "outside the cache" in refusal(STEP + f"run({block}, 16)")


@pytest.mark.parametrize("use", ["plan.write(x, np.ones((1, 2**20), np.float32))", "plan.read(x)"])
def test_a_plan_whose_finish_failed_has_no_registers(use: str) -> None:
    code = f"""
import numpy as np
from karat.ops.native_plan import native
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
from karat.ops.native_plan import native
native().pack("F32", 16, 16, np.zeros(1024, np.uint8), {threads})
"""
    assert "threads" in refusal(code)


@pytest.mark.parametrize("row", [[np.nan] * 1000, [np.nan, 1.0, 2.0], [1.0, np.nan, 3.0, np.nan]])
def test_argmax_of_a_row_with_nan_is_an_index(row: list[float]) -> None:
    assert 0 <= rows.argmax(np.array(row, np.float32)) < len(row)
