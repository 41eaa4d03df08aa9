"""What a recorded plan makes of linear layers: taken together or cut, they have the bits of each alone.

Covers: karat.ops.native_plan.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.batch import plain_batch
from karat.checkpoint.weights import Weight
from karat.machine.extension import native
from karat.ops.leaves import NUM_LEAVES, leaf_ends
from karat.ops.native import NativeOps, supported_isas, unavailable_reason
from tests.support.weights import PLAIN, random_blocks, stored_weight

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

F32 = NDArray[np.float32]


def run_plan(plan: Any, outs: list[int], inputs: dict[int, F32]) -> list[F32]:
    """What a recorded plan without attention makes of what is written to its registers: copies of `outs`."""
    (tokens,) = {len(x) for x in inputs.values()}
    plan.finish(tokens, 0, 1, 1, outs)
    for register, x in inputs.items():
        plan.write(register, np.ascontiguousarray(x))
    plan.run(plain_batch(range(tokens)).flat)
    return [plan.read(out).copy() for out in outs]


@pytest.mark.drawn(5)
@pytest.mark.parametrize("stored", native().formats())
@settings(max_examples=10)
@given(
    other=st.sampled_from(native().formats()),
    alike=st.booleans(),
    rows=st.sampled_from([1, 16, 17, 63, 64, 65, 128, 200, 450]),
    tokens=st.sampled_from([1, 1, 2, 9, 40]),
    kept=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@example(other="F16", alike=False, rows=200, tokens=40, kept=False, seed=1)  # blocks beside floats
def test_gate_and_up_together_have_the_bits_of_each(
    stored: str, other: str, alike: bool, rows: int, tokens: int, kept: bool, seed: int
) -> None:
    """Taken into one op with silu_mul, two matrices are read side by side where they are stored alike.

    Their own results may then be written over, but not where somebody reads them.
    """
    rng = np.random.default_rng(seed)
    weights = [random_blocks(s, rows, 512, rng) for s in (stored, stored if alike else other)]
    biases = [rng.standard_normal(rows).astype(np.float32) for _ in range(2)]
    x = rng.standard_normal((tokens, 512)).astype(np.float32)
    results = {}
    for isa in supported_isas():
        ops = NativeOps(isa=isa, threads=1 + seed % 3)
        loaded = [ops.load(weight) for weight in weights]
        vectors = [ops.load(Weight("bias", "F32", b.shape, b.view(np.uint8), Path("in-memory"))) for b in biases]
        gate, up = (ops.linear(x, w, b, name="op") for w, b in zip(loaded, vectors, strict=True))
        plan = native().Plan(isa, 1 + seed % 3)
        register = plan.input(512)
        both = plan.linear(register, loaded, vectors, [512])
        act = plan.silu_mul(*both)
        results[isa], *own = run_plan(plan, [act, *both] if kept else [act], {register: x})
        np.testing.assert_array_equal(results[isa], ops.silu_mul(gate, up, name="op"), err_msg=isa)
        for got, want in zip(own, (gate, up), strict=kept):
            np.testing.assert_array_equal(got, want, err_msg=isa)
        np.testing.assert_array_equal(results[isa], results["generic"], err_msg=isa)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("stored", ["Q2_K", "Q3_K", "Q4_K", "F16"])
@settings(max_examples=15)
@given(
    rows=st.sampled_from([1, 40, 512, 513, 1024, 1100]),
    tokens=st.sampled_from([2, 3, 4, 5, 8, 9, 12, 13, 16, 17, 31, 33, 48, 49, 64, 100]),
    blocks=st.sampled_from([1, 2, 9]),
    seed=st.integers(0, 2**32 - 1),
)
@example(rows=4700, tokens=48, blocks=2, seed=2)
def test_many_rows_and_tokens_have_the_bits_of_each_token(
    stored: str, rows: int, tokens: int, blocks: int, seed: int
) -> None:
    """Rows and tokens are taken in blocks, of one matrix and of two."""
    rng = np.random.default_rng(seed)
    columns = 256 * blocks
    leaves = leaf_ends(columns, 256 if seed % 3 else None)
    gate, up = (random_blocks(stored, rows, columns, rng) for _ in range(2))
    x, residual = (rng.standard_normal((tokens, n)).astype(np.float32) for n in (columns, rows))
    some = rng.permutation(tokens)[:16]
    for isa in supported_isas():
        threads = 1 + seed % 2
        ops = NativeOps(isa=isa, threads=threads)
        loaded = [ops.load(weight) for weight in (gate, up)]
        alone = [[ops.linear(row, w, leaves=leaves, name="op") for w in loaded] for row in x[some, None]]
        of_gate, of_up = (np.concatenate(results) for results in zip(*alone, strict=True))
        plan = native().Plan(isa, threads)
        register, other = plan.input(columns), plan.input(rows)
        (one,) = plan.linear(register, loaded[:1], [None], list(leaves))
        together = plan.add(other, one)  # taken into the layer
        act = plan.silu_mul(*plan.linear(register, loaded, [None, None], list(leaves)))
        got_one, got_act = run_plan(plan, [together, act], {register: x, other: residual})
        np.testing.assert_array_equal(got_one[some], of_gate + residual[some], err_msg=isa)
        np.testing.assert_array_equal(got_act[some], ops.silu_mul(of_gate, of_up, name="op"), err_msg=isa)


@pytest.mark.parametrize("stored", ["F16", "Q4_1", "Q5_K"])
@settings(max_examples=10)
@given(
    rows=st.sampled_from([40, 200, 513]),
    tokens=st.sampled_from([255, 256, 257, 301, 530]),
    threads=st.integers(2, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_panels_cut_by_tokens_have_the_bits_of_whole_ones(
    stored: str, rows: int, tokens: int, threads: int, seed: int
) -> None:
    """Threads that would have few panels share them by tokens; a thread alone takes each panel for all tokens."""
    rng = np.random.default_rng(seed)
    weights = [random_blocks(stored, n, 256, rng) for n in (rows, rows, 40)]
    biases = [rng.standard_normal(n).astype(np.float32) for n in (rows, rows, 40)]
    x, residual = (rng.standard_normal((tokens, n)).astype(np.float32) for n in (256, rows))
    for isa in supported_isas()[1:]:
        ops = NativeOps(isa=isa)
        loaded = [ops.load(weight) for weight in weights]
        vectors = [ops.load(Weight("bias", "F32", b.shape, b.view(np.uint8), Path("in-memory"))) for b in biases]
        results = []
        for count in (1, threads):
            plan = native().Plan(isa, count)
            register, other = plan.input(256), plan.input(rows)
            several = plan.linear(register, loaded, vectors, [256])
            (one,) = plan.linear(register, loaded[:1], [None], [256])
            together = plan.add(other, one)  # taken into the layer
            act = plan.silu_mul(*plan.linear(register, loaded[:2], vectors[:2], [256]))
            results.append(run_plan(plan, [*several, together, act], {register: x, other: residual}))
        for cut, whole in zip(*results, strict=True):
            np.testing.assert_array_equal(cut, whole, err_msg=isa)


@pytest.mark.parametrize("stored", [*PLAIN, "Q8_0", "Q4_0"])
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_ranks_that_own_subtrees_give_the_same_bits(stored: str, num_ranks: int) -> None:
    """Each rank multiplies its own columns, cut at the tree's leaves; the ranks' sums are added as the tree says."""
    rng = np.random.default_rng(5)
    heads, head_dim, rows = 14, 64, 96
    columns = heads * head_dim
    weight = stored_weight(stored, rows, columns, rng)
    ends = leaf_ends(columns, head_dim)
    ops = NativeOps()
    for tokens in (1, 3, 30):
        x = rng.standard_normal((tokens, columns)).astype(np.float32)
        whole = ops.linear(x, ops.load(weight), leaves=ends, name="op")
        per_rank = NUM_LEAVES // num_ranks
        sums = []
        stored_rows = weight.data.reshape(rows, -1)
        for rank in range(num_ranks):
            start = 0 if rank == 0 else ends[rank * per_rank - 1]
            end = ends[(rank + 1) * per_rank - 1]
            part = slice(start * stored_rows.shape[1] // columns, end * stored_rows.shape[1] // columns)
            shard = native().pack(stored, rows, end - start, np.ascontiguousarray(stored_rows[:, part]).reshape(-1), 1)
            plan = native().Plan(ops.isa, 1)
            register = plan.input(end - start)
            own = [leaf_end - start for leaf_end in ends[rank * per_rank : (rank + 1) * per_rank]]
            (out,) = plan.linear(register, [shard], [None], own)
            sums += run_plan(plan, [out], {register: x[:, start:end]})
        while len(sums) > 1:
            sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
        np.testing.assert_array_equal(sums[0], whole)
