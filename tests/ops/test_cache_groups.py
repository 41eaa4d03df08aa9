"""Layers in several cache groups have the bits of layers in one: ops alone on every executor, and in native's plan.

A group with a window gives blocks back that no later token sees, and other tokens get them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.errors import ExecutorError
from karat.ops.executor import CacheSpec, Executor, StepLimits
from karat.ops.native import NativeOps, supported_isas, unavailable_reason
from karat.ops.native_plan import PlanRecorder
from karat.ops.reference import ReferenceOps

GONE = -1


@dataclass(frozen=True)
class Layer:
    """An attention; query heads are as many as KV heads, times two."""

    kv_heads: int
    dim: int
    window: int | None

    def spec(self, number: int, num_blocks: int, block_size: int, dtype: Any) -> CacheSpec:
        return CacheSpec(
            layers=(number,),
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=self.kv_heads,
            k_dim=self.dim,
            v_dim=self.dim,
            dtype=dtype,
        )


class Tables:
    """Block tables of the sequences in one cache group. With a window, blocks are given back as soon as possible."""

    def __init__(self, num_blocks: int, size: int, window: int | None, num_seqs: int, rng: np.random.Generator) -> None:
        self.size, self.window = size, window
        self.free = [int(block) for block in rng.permutation(num_blocks)]
        self.tables: list[list[int]] = [[] for _ in range(num_seqs)]

    def step(self, seq: int, cached: int, context: int) -> list[int]:
        """The table for tokens cached … context - 1."""
        table = self.tables[seq]
        first = 0 if self.window is None else max(0, cached + 1 - self.window) // self.size
        for place in range(min(first, len(table))):
            if table[place] != GONE:
                self.free.insert(0, table[place])
                table[place] = GONE
        table += [self.free.pop(0) for _ in range(-(-context // self.size) - len(table))]
        return table


def batches(
    size: int, windows: Sequence[int | None], plan: Sequence[Sequence[int]], num_blocks: int, seed: int
) -> list[ForwardBatch]:
    """The steps of a plan, the new tokens of each sequence by step, in cache groups with these windows."""
    rng = np.random.default_rng(seed)
    groups = [Tables(num_blocks, size, window, len(plan[0]), rng) for window in windows]
    done, found = [0] * len(plan[0]), []
    for counts in plan:
        spans = [(cached, cached + new) for cached, new in zip(done, counts, strict=True)]
        positions = [position for span in spans for position in range(*span)]
        owners = [seq for seq, new in enumerate(counts) for _ in range(new)]
        tables = [[[*group.step(seq, *span)] for seq, span in enumerate(spans)] for group in groups]
        for of_group in tables:
            width = max(map(len, of_group))
            for table in of_group:
                table += [-1] * (width - len(table))
        batch = ForwardBatch.of(
            size,
            token_ids=[0] * len(positions),
            positions=positions,
            query_starts=[0, *accumulate(counts)],
            context_lens=[stop for _, stop in spans],
            logit_rows=[],
            slots=[
                [of_group[seq][p // size] * size + p % size for seq, p in zip(owners, positions, strict=True)]
                for of_group in tables
            ],
            block_tables=tables,
        )
        batch.validate(cached_lens=done, caches=[(num_blocks * size, window) for window in windows], vocab_size=1)
        found.append(batch)
        done = [stop for _, stop in spans]
    return found


def inputs(layers: Sequence[Layer], batch: ForwardBatch, step: int, dtype: str) -> list[list[NDArray[Any]]]:
    """q, k and v of each layer."""
    rng = np.random.default_rng(step)
    return [
        [
            rng.standard_normal((batch.num_tokens, heads, layer.dim)).astype(dtype)
            for heads in (2 * layer.kv_heads, layer.kv_heads, layer.kv_heads)
        ]
        for layer in layers
    ]


def alone(
    ops: Executor, layers: Sequence[Layer], caches: Sequence[Any], steps: Sequence[ForwardBatch]
) -> list[NDArray[Any]]:
    """Attention of every layer and step, op by op."""
    found = []
    for number, batch in enumerate(steps):
        step = ops.begin(batch)
        for layer, cache, (q, k, v) in zip(layers, caches, inputs(layers, batch, number, ops.dtype), strict=True):
            ops.kv_write(k, v, cache, step)
            out = ops.paged_attention(q, cache, step, scale=0.3, window=layer.window, name="a.b")
            found.append(np.array(ops.read(out)))
    return found


def as_plan(
    isa: str, layers: Sequence[Layer], caches: Sequence[Any], steps: Sequence[ForwardBatch]
) -> list[NDArray[Any]]:
    """The same in one plan."""
    recorder, handles, outs = PlanRecorder(isa, 2), [], []
    for layer, cache in zip(layers, caches, strict=True):
        q, k, v = (recorder.input((heads, layer.dim)) for heads in (2 * layer.kv_heads, layer.kv_heads, layer.kv_heads))
        recorder.kv_write(k, v, cache, None)
        outs.append(recorder.paged_attention(q, cache, None, scale=0.3, window=layer.window, name="a.b"))
        handles.append((q, k, v))
    recorder.finish(
        StepLimits(
            num_tokens=max(batch.num_tokens for batch in steps),
            num_logit_rows=0,
            num_seqs=steps[0].num_seqs,
            context_len=int(max(batch.context_lens.max() for batch in steps)),
        ),
        outs,
    )
    found = []
    for number, batch in enumerate(steps):
        for of_layer, values in zip(handles, inputs(layers, batch, number, "float32"), strict=True):
            for handle, value in zip(of_layer, values, strict=True):
                recorder.fill(handle, value)
        recorder.run(batch)
        found += [recorder.value(out).copy() for out in outs]
    return found


shapes = st.builds(
    Layer, st.integers(1, 2), st.sampled_from([4, 16, 20]), st.one_of(st.none(), st.integers(1, 40), st.just(300))
)
pieces = st.one_of(st.integers(1, 3), st.integers(1, 40), st.integers(250, 280))


@settings(max_examples=6)
@given(
    layers=st.lists(shapes, min_size=2, max_size=3),
    plan=st.integers(1, 3).flatmap(
        lambda seqs: st.lists(st.lists(pieces, min_size=seqs, max_size=seqs), min_size=2, max_size=6)
    ),
    size=st.sampled_from([4, 16, 32]),
    dtype=st.sampled_from(["float16", "float32"]),
    seed=st.integers(0, 99),
)
@example([Layer(2, 16, None), Layer(1, 20, 7)], [[290, 30], [1, 1], [5, 1], [1, 1], [1, 40]], 16, "float16", 1)
@example([Layer(1, 16, 33), Layer(1, 16, 500)], [[290, 30], [270, 1], [1, 1]], 4, "float32", 2)
def test_groups_have_the_bits_of_one(
    layers: list[Layer], plan: list[list[int]], size: int, dtype: Any, seed: int
) -> None:
    num_blocks = sum(-(-sum(counts) // size) for counts in zip(*plan, strict=True)) + 1
    windows = [layer.window for layer in layers]
    one, several = (batches(size, group, plan, num_blocks, seed) for group in ([None], windows))

    def caches(ops: Executor, together: bool) -> list[Any]:
        specs = [layer.spec(number, num_blocks, size, dtype) for number, layer in enumerate(layers)]
        if together:
            return [cache for spec in specs for (cache,) in ops.new_cache([spec])]  # all are group 0
        return [cache for (cache,) in ops.new_cache(specs)]

    for reference in (ReferenceOps("float64"), ReferenceOps("float32")):
        want, got = (
            alone(reference, layers, caches(reference, together), steps)
            for together, steps in ((True, one), (False, several))
        )
        for a, b in zip(want, got, strict=True):
            np.testing.assert_array_equal(a, b)
    for isa in supported_isas():
        ops = NativeOps(isa=isa, threads=2)
        want = alone(ops, layers, caches(ops, True), one)
        for other in (
            alone(ops, layers, caches(ops, False), several),
            as_plan(isa, layers, caches(ops, True), one),
            as_plan(isa, layers, caches(ops, False), several),
        ):
            for a, b in zip(want, other, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=isa)


@pytest.mark.parametrize("size", [4, 16])
def test_what_nobody_sees_is_not_read(size: int) -> None:
    """Slots of blocks that were given back hold NaN: the window's keys are all that counts."""
    layer, plan = Layer(1, 16, 6), [[300], [20], [1], [1]]
    steps = batches(size, [6], plan, 100, 3)
    everything = ForwardBatch.of(
        size,
        token_ids=[0] * 100 * size,
        positions=range(100 * size),
        query_starts=[0, 100 * size],
        context_lens=[100 * size],
        logit_rows=[],
        slots=[range(100 * size)],
        block_tables=[[range(100)]],
    )
    for ops in [ReferenceOps("float32"), *(NativeOps(isa=isa) for isa in supported_isas())]:
        found = []
        for stale in (0.0, np.nan):
            ((cache,),) = ops.new_cache([layer.spec(0, 100, size, "float32")])
            junk = np.full((everything.num_tokens, 1, 16), stale, np.float32)
            ops.kv_write(junk, junk, cache, ops.begin(everything))
            found.append(alone(ops, [layer], [cache], steps))
        for a, b in zip(*found, strict=True):
            assert np.isfinite(b).all()
            np.testing.assert_array_equal(a, b)


def test_keys_and_values_of_different_sizes() -> None:
    """The reference has them; native refuses them by name."""
    rng = np.random.default_rng(5)
    spec = CacheSpec(layers=(3,), num_blocks=4, block_size=4, num_kv_heads=2, k_dim=8, v_dim=5, dtype="float64")
    ops = ReferenceOps("float64")
    ((cache,),) = ops.new_cache([spec])
    assert ops.cache_bytes(spec) == cache.k.nbytes + cache.v.nbytes
    (batch,) = batches(4, [None], [[6, 3]], 4, 0)
    q, k, v = (rng.standard_normal((9, heads, dim)) for heads, dim in ((4, 8), (2, 8), (2, 5)))
    ops.kv_write(k, v, cache, batch)
    out = ops.read(ops.paged_attention(q, cache, batch, scale=0.3, window=None, name="op"))
    assert out.shape == (9, 4 * 5)
    scores = q[5, 3] @ k[:6, 1].T * 0.3
    weights = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(out[5, 15:], weights @ v[:6, 1], rtol=1e-13)
    if not unavailable_reason():
        with pytest.raises(ExecutorError, match=r"keys of 8 numbers and values of 5: the native executor"):
            NativeOps().new_cache([replace(spec, dtype="float32")])
