"""Native linear layers on stored floats have the bits of csrc/contract/kernels.h, in every build and for any number of
tokens; those of every format are within their roundings. (test_integer_kernels.py has the bits of block formats.)

The contract is written out below in NumPy, one operation a rounding, with an emulated fused multiply-add.

Covers: karat.ops.leaves.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.checkpoint.weights import Weight, num_stored_bytes
from karat.machine.extension import native
from karat.ops.leaves import NUM_LEAVES, leaf_ends
from karat.ops.native import NativeOps, supported_isas, unavailable_reason
from karat.quant import FORMATS
from karat.quant.e4m3 import NUMBERS
from tests.support.fma import fma
from tests.support.weights import PLAIN, random_blocks, stored_weight

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

F32 = NDArray[np.float32]


def leaf_of_columns(weight: Weight, x: F32, start: int, end: int) -> F32:
    """The sum over columns start … end - 1: [tokens, rows]."""
    total: F32 = np.zeros((len(x), weight.shape[0]), np.float32)
    values = weight.to_array(np.dtype(np.float32))
    for k in range(start, end):
        total = fma(np.broadcast_to(values[:, k], total.shape), np.broadcast_to(x[:, k : k + 1], total.shape), total)
    return total


def leaf_of_blocks(weight: Weight, x: F32, start: int, end: int) -> F32:
    """The same of E4M3: a chain over each block of 128 columns, and one over the blocks."""
    blocks = weight.data.reshape(weight.shape[0], -1, 132)
    scales = np.ascontiguousarray(blocks[..., :4]).view("<f4")[..., 0]
    numbers = NUMBERS[blocks[..., 4:]]
    total: F32 = np.zeros((len(x), weight.shape[0]), np.float32)
    for block in range(start // 128, end // 128):
        part = np.zeros_like(total)
        for k in range(128):
            column = np.broadcast_to(x[:, 128 * block + k, None], part.shape)
            part = fma(np.broadcast_to(numbers[:, block, k], part.shape), column, part)
        total = fma(part, np.broadcast_to(scales[:, block], part.shape), total)
    return total


def contract(weight: Weight, x: F32, bias: F32 | None, ends: tuple[int, ...]) -> F32:
    leaf = leaf_of_blocks if weight.dtype == "E4M3" else leaf_of_columns
    sums = [leaf(weight, x, start, end) for start, end in zip((0, *ends[:-1]), ends, strict=True)]
    while len(sums) > 1:
        sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0] if bias is None else sums[0] + bias


@pytest.mark.parametrize("stored", PLAIN)
@settings(max_examples=25)
@given(
    data=st.data(),
    tokens=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 23, 200]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_build_has_the_bits_of_the_contract(stored: str, data: st.DataObject, tokens: int, seed: int) -> None:
    columns = data.draw(st.integers(1, 90))
    rows = data.draw(st.sampled_from([1, 15, 16, 17, 63, 64, 65, 100, 144]))
    unit = data.draw(st.sampled_from([None, *(n for n in range(1, 5) if columns % n == 0)]))
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


@settings(max_examples=25)
@given(
    tokens=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 40]),
    rows=st.sampled_from([1, 15, 16, 17, 63, 64, 65, 100, 144]),
    blocks=st.integers(1, 9),
    in_leaves=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_build_has_the_bits_of_fp8(tokens: int, rows: int, blocks: int, in_leaves: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = random_blocks("E4M3", rows, 128 * blocks, rng)
    x = rng.standard_normal((tokens, 128 * blocks)).astype(np.float32)
    leaves = leaf_ends(128 * blocks, 128 if in_leaves else None)
    want = contract(weight, x, None, leaves)
    for isa in supported_isas():
        ops = NativeOps(isa=isa, threads=1 + seed % 3)
        got = ops.linear(x, ops.load(weight), leaves=leaves, name="op")
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32), err_msg=isa)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("stored", native().formats())
@settings(max_examples=10)
@given(tokens=st.sampled_from([1, 2, 3, 4, 5, 6, 8, 9, 16, 40, 530]), seed=st.integers(0, 2**32 - 1))
def test_every_format_is_within_its_roundings_and_the_same_in_every_build(stored: str, tokens: int, seed: int) -> None:
    """Against float64 on the dequantised weights, which the `gguf` package vouches for (tests/quant).

    A sum of n products in sub-blocks of at least 16: one rounding a product, and a few a sub-block. int24 rounds x to
    2**-23 of the largest number of 32. In formats with a minimum both parts of a weight may be larger than the weight;
    the largest weight of a block is at least a quarter of them.
    """
    rng = np.random.default_rng(seed)
    rows, columns = 150, 512
    weight = random_blocks(stored, rows, columns, rng)
    x = rng.standard_normal((tokens, columns)).astype(np.float32)
    values = weight.to_array(np.dtype(np.float64))
    leaves = leaf_ends(columns, None if seed % 3 else 256)
    results = {}
    some = rng.permutation(tokens)[:16]
    for isa in supported_isas():
        ops = NativeOps(isa=isa, threads=1 + seed % 2, activations="int24")
        loaded = ops.load(weight)
        results[isa] = ops.linear(x, loaded, leaves=leaves, name="op")
        alone = [ops.linear(row, loaded, leaves=leaves, name="op") for row in x[some, None]]
        np.testing.assert_array_equal(results[isa][some], np.concatenate(alone))
        np.testing.assert_array_equal(results[isa], results["generic"])
    size = np.abs(values).reshape(rows, -1, 16).max(axis=2).repeat(16, axis=1) if stored in FORMATS else np.abs(values)
    if stored in FORMATS:
        size = 4 * size.reshape(rows, -1, 256).max(axis=2).repeat(256, axis=1)
    bound = 2.0**-24 * (columns + 2 * columns / 16 + 16) * (np.abs(x).astype(np.float64) @ size.T)
    if stored in FORMATS:
        largest = np.abs(x).reshape(tokens, -1, 32).max(axis=2).repeat(32, axis=1).astype(np.float64)
        bound += 2.0**-23 * (largest @ size.T)
    assert (np.abs(results["generic"] - x.astype(np.float64) @ values.T) <= bound).all()


@pytest.mark.drawn(6)
@pytest.mark.parametrize("stored", native().formats())
@settings(max_examples=40)
@given(
    powers=st.sampled_from([(-66, -66), (-67, -66), (-66, -60), (-66, 38), (-66, 39), (30, 38), (38, 39), (-149, 127)]),
    odd=st.sampled_from([None, None, np.inf, np.nan]),
    tokens=st.sampled_from([1, 1, 1, 3, 20]),
    seed=st.integers(0, 2**32 - 1),
)
def test_numbers_of_any_size_have_the_same_bits_in_every_build(
    stored: str, powers: tuple[int, int], odd: float | None, tokens: int, seed: int
) -> None:
    """Also at the limits of float32."""
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
    from karat.batch import plain_batch

    rng = np.random.default_rng(3)
    table = random_blocks(stored, 77, 512, rng)
    ids = rng.permutation(77)
    batch = plain_batch(ids.tolist())
    for isa in supported_isas():
        ops = NativeOps(isa=isa)
        got = ops.embedding(batch, ops.load(table), name="op")
        np.testing.assert_array_equal(got, table.to_array(np.dtype(np.float32))[ids])


@given(units=st.integers(1, 300), unit=st.integers(1, 300))
def test_leaves_cover_the_columns_evenly_and_cut_no_unit(units: int, unit: int) -> None:
    ends = leaf_ends(units * unit, unit)
    sizes = [(end - start) / unit for start, end in zip((0, *ends[:-1]), ends, strict=True)]
    assert len(ends) == NUM_LEAVES and ends[-1] == units * unit
    assert set(sizes) <= {units // NUM_LEAVES, -(-units // NUM_LEAVES)}


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
    stored=st.sampled_from(["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q6_K"]),
    rows=st.integers(1, 70),
    blocks=st.integers(1, 3),
    vector=st.booleans(),
)
def test_the_memory_of_a_weight_is_known_before_it_is_loaded(stored: str, rows: int, blocks: int, vector: bool) -> None:
    block = FORMATS[stored].block_size if stored in FORMATS else 5
    shape = (rows,) if vector and stored not in FORMATS else (rows, blocks * block)
    data = np.zeros(num_stored_bytes(stored, shape), np.uint8)
    ops = NativeOps()
    loaded = ops.load(Weight("weight", stored, shape, data, Path("in-memory")))
    held = 4 * len(loaded) if len(shape) == 1 else loaded.num_bytes
    assert held - 64 < ops.bytes_of(stored, shape) <= held
