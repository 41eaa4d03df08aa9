"""Arrays that another thread writes to while a kernel works on what they were: the result is that of what was given."""

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from karat.batch import ForwardBatch
from karat.machine.extension import native
from karat.ops.native import unavailable_reason

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

WIDTH, HEAD, TOKENS, BLOCK, BLOCKS = 1024, 64, 64, 16, 16
LAYERS = 16  # before anything of the batch is needed: tens of milliseconds


@pytest.fixture
def lock_is_kept() -> Iterator[None]:
    """A thread loses the interpreter's lock only by giving it away: here, once the kernel has begun."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


def disturbed(work: Callable[[], object], disturb: Callable[[], None]) -> object:
    """What `work` returns in a thread of its own, if `disturb` runs as soon as it has given the lock away."""
    begun, results = threading.Event(), []

    def run() -> None:
        begun.set()
        results.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    disturb()
    thread.join()
    return results[0]


COLUMNS: dict[str, Any] = {
    "token_ids": np.arange(TOKENS),
    "positions": np.r_[0:32, 32:64],
    "query_starts": np.array([0, 32, 64]),
    "context_lens": np.array([32, 64]),
    "logit_rows": np.array([5, 31, 40, 63]),
    "slots": [np.r_[32:64, 96:128]],
    "block_tables": [np.array([[2, 3, 0, 0], [4, 5, 6, 7]])],
}


def batch() -> np.ndarray:
    """Two sequences of 32 tokens, of which the second has had 32 before."""
    return ForwardBatch.of(BLOCK, **COLUMNS).flat


def other_batch() -> np.ndarray:
    """Numbers that would reach nothing outside memory either, and give another result."""
    others = {
        "token_ids": COLUMNS["token_ids"][::-1],
        "positions": COLUMNS["positions"][::-1] // 2,
        "slots": [np.roll(COLUMNS["slots"][0], 32)],
        "context_lens": COLUMNS["context_lens"] // 2,
        "block_tables": [COLUMNS["block_tables"][0][::-1]],
        "logit_rows": COLUMNS["logit_rows"] - 5,
    }
    return ForwardBatch.of(BLOCK, **(COLUMNS | others)).flat


@pytest.mark.usefixtures("lock_is_kept")
def test_a_step_reads_what_it_was_given() -> None:
    rng = np.random.default_rng(5)
    plan = native().Plan(native().supported_isas()[-1], 1)

    def matrix(rows: int) -> object:
        values = rng.standard_normal((rows, WIDTH), np.float32) / np.float32(WIDTH**0.5)
        return native().pack("F32", rows, WIDTH, values.reshape(-1).view(np.uint8), 1)

    given = x = plan.input(WIDTH)
    weight = matrix(WIDTH)
    for _ in range(LAYERS):
        (x,) = plan.linear(x, [weight], [None], [WIDTH])
    x = plan.add(x, plan.embedding(matrix(TOKENS)))
    angles = rng.uniform(-3, 3, (BLOCK * BLOCKS, HEAD // 2))
    x = plan.rope(x, native().rope_table(np.cos(angles, dtype=np.float32), np.sin(angles, dtype=np.float32)), HEAD)
    (cache,) = native().cache("float32", [0], BLOCK * BLOCKS, WIDTH // HEAD, HEAD)
    plan.kv_write(x, x, cache)
    out = plan.select_rows(plan.attention(x, cache, HEAD**-0.5, 0, 1, 0, None, 0.0))
    plan.finish(TOKENS, 4, 2, TOKENS, [out])
    values = rng.standard_normal((TOKENS, WIDTH), np.float32)

    def result(numbers: np.ndarray) -> object:
        plan.write(given, values)
        plan.run(numbers)
        return plan.read(out).copy()

    def overwrite() -> None:
        numbers[...] = other_batch()

    expected = result(batch())
    numbers = batch()
    np.testing.assert_array_equal(disturbed(lambda: result(numbers), overwrite), expected)
    np.testing.assert_array_equal(numbers, other_batch())


@pytest.mark.usefixtures("lock_is_kept")
def test_packing_reads_the_order_that_it_was_given() -> None:
    rows, columns = 8192, 256
    rng = np.random.default_rng(6)
    stored = rng.integers(0, 256, (rows, columns * 4), np.uint8)
    order = rng.permutation(rows)
    expected = stored[order].reshape(-1)

    def overwrite() -> None:
        order[:] = 0

    def pack() -> object:
        return native().pack("F32", rows, columns, stored.reshape(-1), 1, order=order).stored()

    np.testing.assert_array_equal(disturbed(pack, overwrite), expected)
    assert not order.any()
