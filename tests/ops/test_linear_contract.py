"""Native linear layers have, in every build and for any number of tokens, the bits of the contract in csrc/kernels.h.

The contract is written out below in NumPy, one operation a rounding, with an emulated fused multiply-add.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.checkpoint.weights import Weight, num_stored_bytes
from karat.ops.leaves import NUM_LEAVES, leaf_ends
from karat.ops.native import NativeOps, supported_isas, unavailable_reason
from karat.ops.native_plan import native
from karat.quant import FORMATS
from tests.support.fma import fma

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

F32 = NDArray[np.float32]
PLAIN = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
STORED = (*PLAIN, "Q8_0", "Q4_0")
BY_NIBBLES = ("Q2_K", "Q3_K")


def stored_weight(stored: str, rows: int, columns: int, rng: np.random.Generator) -> Weight:
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    if stored in FORMATS:
        format_ = FORMATS[stored]
        data = format_.quantize(values.reshape(-1, format_.block_size))
    elif stored == "BF16":
        data = (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    else:
        data = values.astype(PLAIN[stored]).view(np.uint8)
    return Weight("weight", stored, (rows, columns), np.ascontiguousarray(data).reshape(-1), Path("in-memory"))


def codes_and_scales(weight: Weight) -> tuple[F32, F32, int]:
    """Weights as code * scale: codes [rows, columns], scales [rows, blocks], columns of a block."""
    format_ = FORMATS[weight.dtype]
    blocks = weight.data.reshape(-1, format_.block_bytes)
    scales = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    unit = blocks.copy()
    unit[:, :2] = np.array([1.0], "<f2").view(np.uint8)  # with a scale of 1 the values are the codes
    codes = format_.dequantize(unit).astype(np.float32).reshape(weight.shape)
    return codes, scales.reshape(weight.shape[0], -1), format_.block_size


def q2_k_numbers(weight: Weight) -> tuple[F32, F32, F32]:
    """Weights as code * scale + minimum: codes [rows, columns], scales and minima [rows, columns / 16]."""
    blocks = weight.data.reshape(-1, 84)
    four_bits = blocks[:, :16]
    two_bits = blocks[:, 16:80].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1) & 3
    halves = np.ascontiguousarray(blocks[:, 80:]).view("<f2").astype(np.float32)
    scales = halves[:, :1] * (four_bits & 15).astype(np.float32)
    minima = -(halves[:, 1:] * (four_bits >> 4).astype(np.float32))
    rows = weight.shape[0]
    return two_bits.astype(np.float32).reshape(rows, -1), scales.reshape(rows, -1), minima.reshape(rows, -1)


def q3_k_numbers(weight: Weight) -> tuple[F32, F32, F32]:
    """Weights as (low + high) * scale: low (0 … 3) and high (0 or -4) [rows, columns], scales [rows, columns / 16]."""
    blocks = weight.data.reshape(-1, 110)
    two_bits = blocks[:, 32:96].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1) & 3
    third_bits = blocks[:, :32].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(8, 1) & 1
    nibbles = np.concatenate([blocks[:, 96:104] & 15, blocks[:, 96:104] >> 4], axis=1)
    above = (blocks[:, 104:108].reshape(-1, 1, 4) >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1) & 3).reshape(-1, 16)
    six_bits = (nibbles | above << 4).astype(np.float32) - np.float32(32)
    scales = np.ascontiguousarray(blocks[:, 108:]).view("<f2").astype(np.float32) * six_bits
    rows = weight.shape[0]
    high = 4 * third_bits.astype(np.float32) - 4
    return two_bits.astype(np.float32).reshape(rows, -1), high.reshape(rows, -1), scales.reshape(rows, -1)


def leaf_by_nibbles(weight: Weight, x: F32, start: int, end: int) -> F32:
    """The same of Q2_K and Q3_K: sums over pairs of columns, four apart, and over fours of third bits."""
    high = minima = None
    if weight.dtype == "Q2_K":
        codes, scales, minima = q2_k_numbers(weight)
    else:
        codes, high, scales = q3_k_numbers(weight)
    total: F32 = np.zeros((len(x), weight.shape[0]), np.float32)

    def added(part: F32, counts: F32, columns: range) -> F32:
        product = np.multiply(*np.broadcast_arrays(counts[:, columns[0]], x[:, columns[0], None]))
        for k in columns[1:]:
            product = fma(*np.broadcast_arrays(counts[:, k], x[:, k, None]), product)
        return part + product

    for block in range(start // 16, end // 16):
        part: F32 = np.zeros_like(total)
        for k in (16 * block + i for i in (0, 1, 2, 3, 8, 9, 10, 11)):
            part = added(part, codes, range(k, k + 8, 4))
        if high is not None:
            for k in range(16 * block, 16 * block + 4):
                part = added(part, high, range(k, k + 16, 4))
        total = fma(part, np.broadcast_to(scales[:, block], part.shape), total)
        if minima is not None:
            lanes = x[:, 16 * block : 16 * block + 16]
            while lanes.shape[1] > 1:
                lanes = lanes[:, : lanes.shape[1] // 2] + lanes[:, lanes.shape[1] // 2 :]
            total = fma(*np.broadcast_arrays(lanes, minima[:, block]), total)
    return total


def leaf(weight: Weight, x: F32, start: int, end: int) -> F32:
    """The sum over columns start … end - 1: [tokens, rows]."""
    if weight.dtype in BY_NIBBLES:
        return leaf_by_nibbles(weight, x, start, end)
    total: F32 = np.zeros((len(x), weight.shape[0]), np.float32)
    if weight.dtype not in FORMATS:
        values = weight.to_array(np.dtype(np.float32))
        for k in range(start, end):
            total = fma(
                np.broadcast_to(values[:, k], total.shape), np.broadcast_to(x[:, k : k + 1], total.shape), total
            )
        return total
    codes, scales, size = codes_and_scales(weight)
    for block in range(start // size, end // size):
        part: F32 = np.zeros_like(total)
        for k in range(block * size, (block + 1) * size):
            part = fma(*np.broadcast_arrays(codes[:, k], x[:, k : k + 1]), part)
        total = fma(part, np.broadcast_to(scales[:, block], part.shape), total)
    return total


def contract(weight: Weight, x: F32, bias: F32 | None, ends: tuple[int, ...]) -> F32:
    sums = [leaf(weight, x, start, end) for start, end in zip((0, *ends[:-1]), ends, strict=True)]
    while len(sums) > 1:
        sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0] if bias is None else sums[0] + bias


@pytest.mark.parametrize("stored", [*STORED, *BY_NIBBLES])
@settings(max_examples=25)
@given(
    data=st.data(),
    tokens=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 23, 200]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_build_has_the_bits_of_the_contract(stored: str, data: st.DataObject, tokens: int, seed: int) -> None:
    block = FORMATS[stored].block_size if stored in FORMATS else 1
    columns = block * data.draw(st.integers(1, 9 if block > 1 else 90))
    rows = data.draw(st.sampled_from([1, 15, 16, 17, 63, 64, 65, 100, 144]))
    unit = data.draw(st.sampled_from([None, *(block * n for n in range(1, 5) if columns % (block * n) == 0)]))
    leaves = leaf_ends(columns, unit)
    rng = np.random.default_rng(seed)
    weight = stored_weight(stored, rows, columns, rng)
    x = rng.standard_normal((tokens, columns)).astype(np.float32)
    bias = rng.standard_normal(rows).astype(np.float32) if seed % 2 else None
    want = contract(weight, x, bias, leaves)
    for isa in supported_isas():
        ops = NativeOps(isa=isa, threads=1 + seed % 3)
        loaded = ops.load(weight)
        vector = None if bias is None else ops.load(Weight("bias", "F32", bias.shape, bias.view(np.uint8), weight.file))
        got = ops.linear(x, loaded, vector, leaves=leaves, name="op")
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32), err_msg=isa)


def random_blocks(stored: str, rows: int, columns: int, rng: np.random.Generator) -> Weight:
    """Any bytes that are a legal matrix; of block formats all codes and scales, as long as they are finite."""
    if stored not in FORMATS:
        return stored_weight(stored, rows, columns, rng)
    format_ = FORMATS[stored]
    blocks = rng.integers(0, 256, (rows * columns // format_.block_size, format_.block_bytes), np.uint8)
    while (bad := ~np.isfinite(format_.dequantize(blocks)).all(axis=1)).any():
        blocks[bad] = rng.integers(0, 256, (int(bad.sum()), format_.block_bytes), np.uint8)
    return Weight("weight", stored, (rows, columns), blocks.reshape(-1), Path("in-memory"))


@pytest.mark.parametrize("stored", native().formats())
@settings(max_examples=10)
@given(tokens=st.sampled_from([1, 2, 3, 4, 5, 6, 8, 9, 16, 40, 530]), seed=st.integers(0, 2**32 - 1))
def test_every_format_is_within_its_roundings_and_the_same_in_every_build(stored: str, tokens: int, seed: int) -> None:
    """Against float64 on the dequantised weights, which the `gguf` package vouches for (tests/quant).

    A sum of n products in sub-blocks of at least 16: one rounding a product, two a sub-block, and those of x's sums.
    In formats with a minimum both parts of a weight may be larger than the weight; the largest weight of a block is at
    least a quarter of them.
    """
    rng = np.random.default_rng(seed)
    rows, columns = 150, 512
    weight = random_blocks(stored, rows, columns, rng)
    x = rng.standard_normal((tokens, columns)).astype(np.float32)
    values = weight.to_array(np.dtype(np.float64))
    leaves = leaf_ends(columns, None if seed % 3 else 256)
    results = {}
    for isa in supported_isas():
        ops = NativeOps(isa=isa, threads=1 + seed % 2)
        loaded = ops.load(weight)
        results[isa] = ops.linear(x, loaded, leaves=leaves, name="op")
        alone = [ops.linear(row, loaded, leaves=leaves, name="op") for row in x[:, None]]
        np.testing.assert_array_equal(results[isa], np.concatenate(alone))
        np.testing.assert_array_equal(results[isa], results["generic"])
    size = np.abs(values).reshape(rows, -1, 16).max(axis=2).repeat(16, axis=1) if stored in FORMATS else np.abs(values)
    if stored in FORMATS:
        size = 4 * size.reshape(rows, -1, 256).max(axis=2).repeat(256, axis=1)
    bound = 2.0**-24 * (columns + 2 * columns / 16 + 16) * (np.abs(x).astype(np.float64) @ size.T)
    assert (np.abs(results["generic"] - x.astype(np.float64) @ values.T) <= bound).all()


@pytest.mark.parametrize("stored", native().formats())
@settings(max_examples=40)
@given(
    powers=st.sampled_from([(-66, -66), (-67, -66), (-66, -60), (-66, 38), (-66, 39), (30, 38), (38, 39), (-149, 127)]),
    odd=st.sampled_from([None, None, np.inf, np.nan]), tokens=st.sampled_from([1, 1, 1, 3, 20]),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_numbers_of_any_size_have_the_same_bits_in_every_build(
    stored: str, powers: tuple[int, int], odd: float | None, tokens: int, seed: int
) -> None:
    """Also where a build scales x (csrc/subnormal.h), at the limits of what it scales and beyond."""
    rng = np.random.default_rng(seed)
    weight = random_blocks(stored, 144, 512, rng)
    shape = (tokens, 512)
    mantissas = rng.uniform(1, 2, shape).astype(np.float32) * rng.choice(np.array([-1, 0, 1], np.float32), shape)
    x = np.ldexp(mantissas, rng.integers(*powers, shape, endpoint=True))
    if odd is not None:
        x[-1, rng.integers(512)] = odd
    results = {}
    for isa in supported_isas():
        ops = NativeOps(isa=isa)
        got = results[isa] = ops.linear(x, ops.load(weight), name="op")
        want = results["generic"]
        bits = [np.where(np.isnan(r), 0, r.view(np.uint32)) for r in (got, want)]
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=isa)
        np.testing.assert_array_equal(*bits, err_msg=isa)


@pytest.mark.parametrize("stored", native().formats())
def test_the_embedding_is_the_dequantised_row(stored: str) -> None:
    from karat.batch import ForwardBatch

    rng = np.random.default_rng(3)
    table = random_blocks(stored, 77, 512, rng)
    ids = rng.permutation(77).astype(np.int32)
    zeros = np.zeros(77, np.int32)
    batch = ForwardBatch(
        token_ids=ids, positions=zeros, slots=zeros, query_starts=np.array([0, 77], np.int32),
        context_lens=np.array([77], np.int32), block_tables=np.zeros((1, 1), np.int32), logit_rows=zeros[:0],
        block_size=77,
    )  # fmt: skip
    for isa in supported_isas():
        ops = NativeOps(isa=isa)
        got = ops.embedding(batch, ops.load(table), name="op")
        np.testing.assert_array_equal(got, table.to_array(np.dtype(np.float32))[ids])


def run_plan(plan: Any, outs: list[int], inputs: dict[int, F32]) -> list[F32]:
    """What a recorded plan without attention makes of what is written to its registers: copies of `outs`."""
    (tokens,) = {len(x) for x in inputs.values()}
    plan.finish(tokens, 0, 1, 1, outs)
    for register, x in inputs.items():
        plan.write(register, np.ascontiguousarray(x))
    zeros = np.zeros(tokens, np.int32)
    plan.run(zeros, zeros, zeros, np.array([0, tokens], np.int32), np.array([1], np.int32), np.zeros((1, 1), np.int32),
             zeros[:0], 1)  # fmt: skip
    return [plan.read(out).copy() for out in outs]


@pytest.mark.parametrize("stored", native().formats())
@settings(max_examples=10)
@given(
    other=st.sampled_from(native().formats()), alike=st.booleans(),
    rows=st.sampled_from([1, 16, 17, 63, 64, 65, 128, 200, 450]), tokens=st.sampled_from([1, 1, 2, 9, 40]),
    kept=st.booleans(), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
@example(other="Q3_K", alike=False, rows=200, tokens=40, kept=False, seed=1)  # Q2_K beside it shares no table with it
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


@pytest.mark.parametrize("stored", [*BY_NIBBLES, "Q4_K", "F16"])
@settings(max_examples=15)
@given(
    rows=st.sampled_from([1, 40, 512, 513, 1024, 1100]),
    tokens=st.sampled_from([2, 3, 4, 5, 8, 9, 12, 13, 16, 17, 31, 33, 48, 49, 64, 100]),
    blocks=st.sampled_from([1, 2, 9]), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
@example(rows=4700, tokens=48, blocks=2, seed=2)  # one thread takes more rows at a time than a table serves
def test_many_rows_and_tokens_have_the_bits_of_each_token(
    stored: str, rows: int, tokens: int, blocks: int, seed: int
) -> None:
    """Rows and tokens are taken in blocks, by nibbles in such that share a table, of one matrix and of two."""
    rng = np.random.default_rng(seed)
    columns = 256 * blocks
    leaves = leaf_ends(columns, 256 if seed % 3 else None)
    gate, up = (random_blocks(stored, rows, columns, rng) for _ in range(2))
    x, residual = (rng.standard_normal((tokens, n)).astype(np.float32) for n in (columns, rows))
    for isa in supported_isas():
        threads = 1 + seed % 2
        ops = NativeOps(isa=isa, threads=threads)
        loaded = [ops.load(weight) for weight in (gate, up)]
        alone = [[ops.linear(row, w, leaves=leaves, name="op") for w in loaded] for row in x[:, None]]
        of_gate, of_up = (np.concatenate(results) for results in zip(*alone, strict=True))
        plan = native().Plan(isa, threads)
        register, other = plan.input(columns), plan.input(rows)
        (one,) = plan.linear(register, loaded[:1], [None], list(leaves))
        together = plan.add(other, one)  # taken into the layer
        act = plan.silu_mul(*plan.linear(register, loaded, [None, None], list(leaves)))
        got_one, got_act = run_plan(plan, [together, act], {register: x, other: residual})
        np.testing.assert_array_equal(got_one, of_gate + residual, err_msg=isa)
        np.testing.assert_array_equal(got_act, ops.silu_mul(of_gate, of_up, name="op"), err_msg=isa)


@pytest.mark.parametrize("stored", ["F16", "Q4_1", "Q5_K"])
@settings(max_examples=10)
@given(
    rows=st.sampled_from([40, 200, 513]), tokens=st.sampled_from([255, 256, 257, 301, 530]),
    threads=st.integers(2, 5), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
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


@given(units=st.integers(1, 300), unit=st.integers(1, 300))
def test_leaves_cover_the_columns_evenly_and_cut_no_unit(units: int, unit: int) -> None:
    ends = leaf_ends(units * unit, unit)
    sizes = [(end - start) / unit for start, end in zip((0, *ends[:-1]), ends, strict=True)]
    assert len(ends) == NUM_LEAVES and ends[-1] == units * unit
    assert set(sizes) <= {units // NUM_LEAVES, -(-units // NUM_LEAVES)}


@pytest.mark.parametrize("stored", STORED)
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


def test_types_without_kernels_are_held_as_float32_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(6)
    weight = random_blocks("TQ2_0", 40, 256, rng)
    assert weight.dtype not in native().formats()
    ops = NativeOps()
    x = rng.standard_normal((3, 256)).astype(np.float32)
    got = ops.linear(x, ops.load(weight), name="op")
    plain = weight.to_array(np.dtype(np.float32))
    want = ops.linear(
        x, ops.load(Weight("weight", "F32", plain.shape, plain.reshape(-1).view(np.uint8), Path())), name="op"
    )
    np.testing.assert_array_equal(got, want)
    ops.load(weight)
    assert len([r for r in caplog.records if "weights of TQ2_0 are held as float32" in r.getMessage()]) == 1


@given(
    stored=st.sampled_from(["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q6_K"]), rows=st.integers(1, 70),
    blocks=st.integers(1, 3), vector=st.booleans(),
)  # fmt: skip
def test_the_memory_of_a_weight_is_known_before_it_is_loaded(stored: str, rows: int, blocks: int, vector: bool) -> None:
    block = FORMATS[stored].block_size if stored in FORMATS else 5
    shape = (rows,) if vector and stored not in FORMATS else (rows, blocks * block)
    data = np.zeros(num_stored_bytes(stored, shape), np.uint8)
    ops = NativeOps()
    loaded = ops.load(Weight("weight", stored, shape, data, Path("in-memory")))
    held = 4 * len(loaded) if len(shape) == 1 else loaded.num_bytes
    assert held - 64 < ops.bytes_of(stored, shape) <= held
