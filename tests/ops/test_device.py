"""The kernels of a GPU, emulated, have the bits of the native executor: every op, format, width and type of cache.

The emulation also raises where a kernel leaves something to chance (csrc/gpu/simt.h), so each case here is a search for
races, early reads and misaligned accesses, too. tests/gpu plants such mistakes.

Covers: karat.ops.device_ops.
"""

import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.batch import ForwardBatch, plain_batch
from karat.checkpoint.slices import block_of
from karat.checkpoint.weights import Weight
from karat.config import Activations, RopeConfig
from karat.errors import CapacityError, ExecutorError, NumericsError
from karat.ops import device, device_ops
from karat.ops.api import (
    OPS,
    Clamp,
    GatherColumns,
    Groups,
    HeadGroups,
    PagedAttention,
    Routing,
    Single,
    Tensor,
)
from karat.ops.device import EmulatedOps, missing
from karat.ops.executor import CacheSpec, Executor, StateSpec
from karat.ops.leaves import leaf_ends
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.rows import finite_argmax, largest
from karat.ops.tap import Tap
from karat.quant import CODINGS, FORMATS
from karat.ranks.group import Share
from tests.support.activations import rows_of_all_kinds
from tests.support.drawn import some
from tests.support.integer_digests import NAMES, digest, stated
from tests.support.seed import SEED
from tests.support.state_steps import random_cuts, steps_of
from tests.support.thread_group import ThreadGroup, on_all_ranks
from tests.support.weights import random_blocks

if reason := unavailable_reason() or missing("cuda-emulated"):
    pytest.skip(f"no emulated GPU: {reason}", allow_module_level=True)

F32 = NDArray[np.float32]
FLOATS = ("F32", "F16", "BF16", "E4M3")


def both(width: Activations = "int16") -> tuple[NativeOps, EmulatedOps]:
    return NativeOps(threads=1, activations=width), EmulatedOps(activations=width, number=int(rng_of().integers(2**32)))


def vector(values: F32) -> Weight:
    return Weight("vector", "F32", values.shape, values.view(np.uint8), Path("in-memory"))


def values_of(x: Any) -> NDArray[Any]:
    """A result, or what a device has of it."""
    if isinstance(x, np.ndarray):
        return x
    values = np.empty(x.shape, np.float32 if x.is_float else np.int32)
    x.read(values)
    return values


def assert_same_bits(got: Any, want: Any, message: str = "") -> None:
    """NaN where there is NaN; its sign and payload are not promised."""
    got = values_of(got)
    assert got.shape == want.shape and got.dtype == want.dtype == np.float32
    bits = [np.where(np.isnan(r), np.uint32(0x7FC00000), np.ascontiguousarray(r).view(np.uint32)) for r in (got, want)]
    np.testing.assert_array_equal(*bits, err_msg=message)


def rng_of(*of: object) -> np.random.Generator:
    return np.random.default_rng([*f"{SEED} {of}".encode()])


def test_digests() -> None:
    """Those that the definition of contract 5 made: every block format and width, one leaf and eight."""

    def by_emulation(weight: Weight, x: F32, ends: tuple[int, ...], width: str) -> F32:
        ops = EmulatedOps(activations=width)  # type: ignore[arg-type]
        return values_of(ops.linear(x, ops.load(weight), leaves=ends, name="op"))

    for (stored, width), found in some(stated().items(), 12, "device"):
        assert digest(stored, width, by_emulation) == found, f"{stored}, {width}"


@pytest.mark.drawn(1, each=("stored", "width"))
@pytest.mark.parametrize("stored", CODINGS)
@pytest.mark.parametrize("width", NAMES)
def test_linear_layers_on_blocks(stored: str, width: Activations) -> None:
    """Rows of every kind, panels of both widths, a bias; one token, several, and more than a tile has."""
    rng = rng_of(stored, width)
    columns = 256 * int(rng.integers(1, 8)) if FORMATS[stored].block_size == 256 else 32 * int(rng.integers(1, 70))
    weight = random_blocks(stored, int(rng.integers(1, 150)), columns, rng)
    x = rows_of_all_kinds(columns, rng)
    bias = vector(rng.standard_normal(weight.shape[0]).astype(np.float32))
    for ends in ((columns,), leaf_ends(columns, FORMATS[stored].block_size)):
        many = x[rng.integers(0, len(x), int(rng.integers(17, 70)))]
        for rows in (x[:1], x[3:4], x[: int(rng.integers(2, len(x) + 1))], many):
            results = [
                ops.linear(rows, ops.load(weight), ops.load(bias), leaves=ends, name="op") for ops in both(width)
            ]
            assert_same_bits(results[1], results[0], f"{weight.shape}, {len(rows)} tokens, {len(ends)} leaves")


@pytest.mark.parametrize("stored", FLOATS)
def test_linear_layers_on_floats(stored: str) -> None:
    rng = rng_of(stored)
    for tokens in (1, 2, int(rng.integers(3, 17)), int(rng.integers(17, 70))):
        columns, rows = int(rng.integers(1, 1700 if tokens == 2 else 300)), int(rng.integers(1, 150))
        unit = FORMATS[stored].block_size if stored in FORMATS else 1
        columns = -(-columns // unit) * unit
        weight = random_blocks(stored, rows, columns, rng)
        x = rng.standard_normal((tokens, columns)).astype(np.float32)
        x[-1, -1] = rng.choice([np.nan, np.inf, 1e-42, 1.0])
        for ends in ((columns,), leaf_ends(columns, unit)):
            results = [ops.linear(x, ops.load(weight), leaves=ends, name="op") for ops in both()]
            assert_same_bits(results[1], results[0], f"{weight.shape}, {tokens} tokens, {len(ends)} leaves")


def test_qkv_and_gate_up_are_linear_layers() -> None:
    rng = rng_of()
    weights = [random_blocks("Q4_0", rows, 64, rng) for rows in (64, 32, 32)]
    for ops, tokens in product(both(), (3, 40)):
        x = rng.standard_normal((tokens, 64)).astype(np.float32)
        q, k, v = (ops.load(weight) for weight in weights)
        heads = ops.qkv(x, (q, k, v), None, head_dim=16, names=("q", "k", "v"))
        gates = ops.gate_up(x, (k, v), None, names=("gate", "up"))
        for got, weight in zip((*heads, *gates), (q, k, v, k, v), strict=True):
            assert_same_bits(values_of(got).reshape(tokens, -1), values_of(ops.linear(x, weight, name="op")))


@pytest.mark.parametrize("stored", [*FLOATS, *CODINGS])
def test_embedding(stored: str) -> None:
    rng = rng_of(stored)
    columns = 512 if stored in FORMATS else 70
    table = random_blocks(stored, 150, columns, rng)
    ids = [0, 149, 63, 64, 127, 128, 144, *rng.integers(0, 150, 3).tolist()]
    results = [ops.embedding(plain(ids), ops.load(table), name="op") for ops in both()]
    assert_same_bits(results[1], results[0])


def plain(ids: list[int]) -> ForwardBatch:
    return plain_batch(ids)


def values(rng: np.random.Generator, *shape: int) -> F32:
    """Of all sizes, and what is not finite."""
    x = np.ldexp(rng.standard_normal(shape).astype(np.float32), rng.integers(-10, 8, shape))
    flat = x.reshape(-1)
    flat[rng.integers(0, len(flat), 4)] = [0.0, -0.0, 100.0, -100.0]
    flat[rng.integers(0, len(flat))] = rng.choice([np.nan, np.inf, -np.inf, 3e38, 1e-40])
    return x


def test_ops_on_elements_and_rows() -> None:
    rng = rng_of()
    for _ in range(5):
        rows, n = int(rng.integers(1, 5)), 2 * int(rng.integers(3, 150))
        x, y = values(rng, rows, n), values(rng, rows, n)
        gates, heads = values(rng, rows, 2), values(rng, rows, 3, n)
        weight, eps = vector(rng.standard_normal(n).astype(np.float32)), float(rng.choice([1e-5, 1e-6]))
        whole = vector(rng.standard_normal(3 * n).astype(np.float32))  # a norm over all heads
        batch = plain(rng.integers(0, 9, rows).tolist())
        rope, turned, part = RopeConfig(theta=10000.0), 2 * int(rng.integers(1, n // 2 + 1)), int(rng.integers(1, n))
        one = vector(rng.standard_normal(1).astype(np.float32))
        factor, cap, of_log = float(rng.standard_normal()), float(rng.choice([0.5, 30.0])), bool(rng.integers(2))
        rate = vector(rng.standard_normal(n).astype(np.float32))
        count = 2 ** int(rng.integers(4))
        q_leaves, k_leaves = (leaf_ends(size, 1)[8 // count - 1 :: 8 // count] for size in (3 * n, n))
        first = int(rng.integers(k_leaves[0] + 1))
        with np.errstate(all="ignore"):
            results = [
                (
                    ops.rms_norm(x, ops.load(weight), eps, name="op"),
                    ops.rms_norm(heads, ops.load(whole), eps, name="op"),
                    ops.rms_norm(x, ops.load(weight), eps, plus_one=True, name="op"),
                    squares := ops.square_sums(
                        heads, x, q_leaves=q_leaves, k_leaves=k_leaves, k_first=first, name="op"
                    ),
                    ops.part_norm(heads, squares, ops.load(whole), eps, part=0, count=3 * n + 5, name="op"),
                    ops.part_norm(x, squares, ops.load(weight), eps, part=1, count=n, name="op"),
                    ops.l2_norm(heads, eps, factor, name="op"),
                    ops.silu_mul(x, y, name="op"),
                    ops.gelu_mul(x, y, name="op"),
                    ops.soft_cap(x, cap, name="op"),
                    ops.sigmoid_mul(x, gates, name="op"),
                    ops.sigmoid_mul(x, y, name="op"),
                    ops.add(x, y, name="op"),
                    ops.mul(x, y, name="op"),
                    ops.sigmoid(x, name="op"),
                    ops.scale(x, 1 / 3, name="op"),
                    ops.scale_by(x, ops.load(one), name="op"),
                    *(
                        ops.rope(heads, ops.rope_table(rope, head_dim=dim, num_positions=rows), batch, name="op")
                        for dim in (n, turned)
                    ),
                    *ops.split(heads, ((3, part), (n - part,), (2, n - part)), names=("a", "b", "c")),
                    *ops.split(x, ((2, n // 4 + 1), (n - 2 * (n // 4 + 1),)), groups=2, names=("a", "b")),
                    ops.decay(x, *(ops.load(each) for each in (weight, rate)), of_log=of_log, name="op"),
                    ops.select_rows(x, batch, name="op"),
                )
                for ops in both()
            ]
        for number, (want, got) in enumerate(zip(*results, strict=True)):
            assert_same_bits(got, want, f"{number}")


def steps(rng: np.random.Generator, lens: list[int], block_size: int) -> tuple[list[ForwardBatch], int]:
    """A step for all but a few tokens of each sequence, and one for these: on shuffled blocks. And how many blocks."""
    counts = [-(-n // block_size) for n in lens]
    order = rng.permutation(sum(counts) + 2).astype(np.int32)
    tables = np.full((len(lens), max(counts)), -1, np.int32)
    for i, count in enumerate(counts):
        tables[i, :count] = order[sum(counts[:i]) :][:count]
    last = [int(rng.integers(1, min(n, 4))) for n in lens]
    made = []
    for begin, end in (
        ([0] * len(lens), [n - m for n, m in zip(lens, last, strict=True)]),
        ([n - m for n, m in zip(lens, last, strict=True)], lens),
    ):
        new = [b - a for a, b in zip(begin, end, strict=True)]
        positions = np.concatenate([np.arange(a, b) for a, b in zip(begin, end, strict=True)])
        owner = np.repeat(np.arange(len(lens)), new)
        slots = tables[owner, positions // block_size] * block_size + positions % block_size
        made.append(
            ForwardBatch.of(
                block_size,
                token_ids=positions % 7,
                positions=positions,
                query_starts=[0, *np.cumsum(new)],
                context_lens=end,
                logit_rows=[0],
                slots=[slots],
                block_tables=[tables],
            )
        )
    return made, len(order)


@pytest.mark.parametrize(("kv_dtype", "cap"), [("float32", 0.4), ("float16", None), ("bfloat16", None)])
@pytest.mark.parametrize(("window", "has_sinks"), [(None, False), (200, True)])
def test_attention(kv_dtype: Any, cap: float | None, window: int | None, has_sinks: bool) -> None:
    """A prompt and a decode step over two splits, with groups that are cut, and scores for observers."""
    rng = rng_of(kv_dtype, window)
    sinks = vector(rng.standard_normal(4).astype(np.float32)) if has_sinks else None
    batches, blocks = steps(rng, [int(rng.integers(257, 280)), 5], 16)
    dim, groups, kv_heads, heads = 2 * int(rng.integers(4, 12)), HeadGroups(3, 1), 2, 4
    spec = CacheSpec(
        layers=(0, 1), num_blocks=blocks, block_size=16, num_kv_heads=kv_heads, k_dim=dim, v_dim=dim, dtype=kv_dtype
    )
    shapes = (heads, kv_heads, kv_heads)
    inputs = [
        [rng.standard_normal((batch.num_tokens, count, dim)).astype(np.float32) for count in shapes]
        for batch in batches
    ]
    results = []
    for ops in both():
        cache = ops.new_cache([spec])[0][1]
        given: Any = {"groups": groups, "cap": cap, "sinks": None if sinks is None else ops.load(sinks), "name": "op"}
        shown: list[F32] = []
        made: list[F32] = []
        for batch, (q, k, v) in zip(batches, inputs, strict=True):
            ops.kv_write(k, v, cache, batch)
            made.append(ops.paged_attention(q, cache, batch, scale=0.3, window=window, **given))
        ops.paged_attention(
            inputs[1][0],
            cache,
            batches[1],
            scale=0.3,
            window=window,
            **given,
            observe=lambda name, value, shown=shown: shown.append(value),  # type: ignore[misc]
        )
        results.append([*made, *shown])
    assert len(results[0]) == 2 + 2 * 2
    for number, (want, got) in enumerate(zip(*results, strict=True)):
        assert_same_bits(got, want, f"{number}")


@pytest.mark.parametrize(("group", "dim", "block_size"), [(7, 128, 16), (9, 80, 4), (2, 272, 8)])
def test_attention_of_many_heads_and_dimensions(group: int, dim: int, block_size: int) -> None:
    """More heads than a block of threads has rows, more dimensions than it has threads, blocks of few slots."""
    rng = rng_of(group)
    batches, blocks = steps(rng, [int(rng.integers(30, 60)), 258], block_size)
    spec = CacheSpec(
        layers=(0,), num_blocks=blocks, block_size=block_size, num_kv_heads=1, k_dim=dim, v_dim=dim, dtype="float16"
    )
    inputs = [
        [rng.standard_normal((batch.num_tokens, count, dim)).astype(np.float32) for count in (group, 1, 1)]
        for batch in batches
    ]
    results = []
    for ops in both():
        cache = ops.new_cache([spec])[0][0]
        for batch, (_, k, v) in zip(batches, inputs, strict=True):
            ops.kv_write(k, v, cache, batch)
        results.append(ops.paged_attention(inputs[1][0], cache, batches[1], name="op", scale=0.1, window=None))
    assert_same_bits(results[1], results[0])


def test_a_number_that_does_not_fit_the_cache_is_named_as_the_native_executor_names_it() -> None:
    spec = CacheSpec(layers=(0, 1), num_blocks=1, block_size=16, num_kv_heads=2, k_dim=8, v_dim=8, dtype="float16")
    k = np.ones((3, 2, 8), np.float32)
    v = k.copy()
    k[0, 0, 0] = np.inf  # which was not finite before
    v[2, 1, 3], v[2, 1, 4] = 7e4, 8e4
    batch, said = plain([1, 2, 3]), []
    for ops in both():
        with pytest.raises(NumericsError) as caught:
            ops.kv_write(k, v, ops.new_cache([spec])[0][1], batch)
        said.append(str(caught.value))
    assert said[1] == said[0]


def test_weights_are_read_back_as_they_were_stored() -> None:
    rng = rng_of()
    ops: Executor = both()[1]
    for stored in (*FLOATS, *CODINGS):
        weight = random_blocks(stored, 70, 256, rng)
        held = ops.held(ops.load(weight))
        assert held.dtype == stored
        np.testing.assert_array_equal(held.data, weight.stored)


def test_the_first_of_the_largest_logits() -> None:
    """As rows.finite_argmax has it: of equal ones the first, zeros of both signs equal; what is not finite is told."""
    rng = rng_of()
    logits = rng.integers(-3, 3, (8, int(rng.integers(1, 9000)))).astype(np.float32) * np.float32(1e30)
    logits[1] = -abs(logits[1]) - 1
    logits[2] = np.where(rng.random(logits.shape[1]) < 0.5, np.float32(-0.0), np.float32(0.0))
    for row, number in ((3, np.nan), (4, np.inf), (5, -np.inf), (6, -np.nan)):
        logits[row, rng.integers(logits.shape[1])] = number
    device = EmulatedOps(number=int(rng.integers(2**32))).kernels.device
    tops = device.array(np.full((8, 2), -1, np.int32))
    device.finite_argmax(device.array(logits), tops)
    found = values_of(tops)
    assert [int(top[0]) if top.any() else None for top in found] == [finite_argmax(row) for row in logits]


@pytest.mark.drawn(2, each=("num",))
@pytest.mark.parametrize("num", [1, 2, 30, 128, 1000, 1024])
def test_the_largest_logits(num: int) -> None:
    """As rows.largest has them: of equal ones the first; numbers have their bits, zeros of both signs too."""
    rng = rng_of(num)
    for columns in (num, num + 1, 4096, int(rng.integers(4097, 30000))):
        kept = 1 << (num - 1).bit_length()
        logits = rng.integers(-3, 3, (3, columns)).astype(np.float32) * np.float32(1e30)
        logits[1] = rng.standard_normal(columns)
        logits[2] = np.where(rng.random(columns) < 0.5, np.float32(-0.0), np.float32(0.0))
        on = EmulatedOps(number=int(rng.integers(2**32))).kernels.device
        pairs = values_of(on.largest(on.array(logits), kept))
        assert pairs.shape == (3, kept, 2) and (pairs[:, columns:] == -1).all()
        for row, found in zip(logits, pairs, strict=True):
            ids, numbers = found[:num, 0], np.ascontiguousarray(found[:num, 1]).view(np.float32)
            np.testing.assert_array_equal(np.sort(ids), largest(row, num))
            np.testing.assert_array_equal(ids, np.lexsort((np.arange(columns), -row))[:num])
            assert_same_bits(numbers, row[ids])


@dataclass(frozen=True, slots=True, eq=False)
class NewOp(Single):
    """An op that no executor has."""

    x: Tensor


def test_every_op_has_a_function_or_is_refused_by_name() -> None:
    """Or is told apart before: attention by its observer, columns by DeviceOps, which exchanges them between ranks."""
    told_apart = {PagedAttention, GatherColumns}
    assert {*OPS} - {*device_ops._FUNCTIONS, *device_ops._WITH_DIGITS} == told_apart
    with pytest.raises(ExecutorError, match=r"^NewOp: a GPU has no kernels for this op yet$"):
        both()[1].apply(NewOp(np.ones((2, 4), np.float32), name="op"))


@pytest.mark.parametrize("renormalised", [True, False])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("is_plain", [True, False])
def test_routes(renormalised: bool, score: Any, is_plain: bool) -> None:
    """Of logits of every kind: the largest first, of equal ones the smaller id, NaN last; biases, groups and scales."""
    rng = rng_of(renormalised, score, is_plain)
    for _ in range(4):
        groups = int(rng.integers(1, 5))
        experts = int(rng.integers(1, 40)) * groups
        logits = rng.integers(-4, 4, (5, experts)).astype(np.float32) * np.float32(0.7)
        logits[0, rng.integers(0, experts)] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
        taking_part = int(rng.integers(1, groups + 1))
        chosen = int(rng.integers(1, experts // groups * taking_part + 1))
        bias, scales = (vector(rng.standard_normal(experts).astype(np.float32)) for _ in range(2))
        more = {"plus": 1e-6, "least": float(rng.choice([0.0, 0.4])), "scale": 2.5}
        if not is_plain:
            more["groups"] = Groups(groups, taking_part, float(rng.choice([0.0, -np.inf])))
        with np.errstate(all="ignore"):
            (want, want_weights), (got, got_weights) = (
                ops.route(
                    logits,
                    Routing(chosen, renormalised, score)
                    if is_plain
                    else Routing(chosen, renormalised, score, ops.load(bias), scales=ops.load(scales), **more),
                    names=("ids", "weights"),
                )
                for ops in both()
            )
        np.testing.assert_array_equal(values_of(got), want)
        assert_same_bits(got_weights, want_weights)


@pytest.mark.drawn(1, each=("width",))
@pytest.mark.parametrize("width", NAMES)
@pytest.mark.parametrize("stored", [("Q4_0", "Q8_0"), ("F16", "Q4_1"), ("Q5_0", "BF16"), ("E4M3", "E4M3")])
def test_experts(stored: tuple[str, str], width: Activations, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row and several, of a rank that has some of the experts or all, in leaves of ids or of columns.

    With biases, GELU and a clamp. Products of one row or more are made at a time.
    """
    rng = rng_of(stored, width)
    hidden, inner = (128, 256) if "E4M3" in stored else (64, 96)
    count, first, chosen = int(rng.integers(1, 9)), int(rng.integers(0, 3)), 3
    shapes = [(stored[0], inner, hidden), (stored[0], inner, hidden), (stored[1], hidden, inner)]
    weights = [[random_blocks(*shape, rng) for _ in range(count)] for shape in shapes]
    ids = np.array([rng.permutation(count + 4)[:chosen] for _ in range(5)], np.int32)
    x, by = rng.standard_normal((5, hidden)).astype(np.float32), rng.random((5, chosen)).astype(np.float32)
    ends = tuple(min(count, leaf) for leaf in range(1, 9))
    biases = [
        [vector(rng.standard_normal(size).astype(np.float32)) for _ in range(count)] for size in (inner, inner, hidden)
    ]
    clamp = Clamp(limit=2.5, alpha=1.702)
    unit, each_row = block_of(stored[1])[0], chosen * hidden  # of floats
    of_columns = leaf_ends(inner, unit)
    for leaves, by_columns in (((count,), False), ((*ends[:-1], count), False), ((inner,), True), (of_columns, True)):
        for rows, by_gelu in ((1, False), (2, True), (5, False)):
            at_once = int(rng.choice([1, 2, 3])) * (len(leaves) if by_columns else 1)
            monkeypatch.setattr(device_ops, "PRODUCT_FLOATS", at_once * each_row)
            want, got = (
                ops.experts(
                    x[:rows],
                    ids[:rows],
                    by[:rows],
                    *(tuple(map(ops.load, role)) for role in weights),
                    leaves=leaves,
                    by_columns=by_columns,
                    first=first,
                    biases=None if rows == 1 else tuple(tuple(map(ops.load, role)) for role in biases),  # type: ignore[arg-type]
                    by_gelu=by_gelu,
                    clamp=clamp if rows == 5 else None,
                    name="op",
                )
                for ops in both(width)
            )
            assert_same_bits(got, want, f"{rows} rows, {len(leaves)} leaves")


def test_layers_that_keep_states() -> None:
    """Convolutions and the delta rule of three texts in steps, each from the slots that its steps before wrote; a tap
    sees the norms of the states.
    """
    rng = rng_of()
    for _ in range(4):
        lens = [int(n) for n in rng.integers(1, 9, 3)]
        cuts = random_cuts(int(rng.integers(99)), lens)
        channels, taps, silu = int(rng.integers(1, 150)), int(rng.integers(2, 6)), bool(rng.integers(2))
        key_heads, groups, k_dim, v_dim = (int(n) for n in rng.integers(1, [3, 3, 20, 80]))
        heads = key_heads * groups
        of = tuple(int(head) for head in rng.integers(0, key_heads, heads))
        weight, bias = (vector(rng.standard_normal(n).astype(np.float32)) for n in (channels * taps, channels))
        shapes = ((taps - 1, channels), (heads, k_dim, v_dim))
        results: list[list[Any]] = [[], []]
        inputs = [
            [
                values(rng, batch.num_tokens, *shape)
                for shape in ((channels,), *[(key_heads, k_dim)] * 2, (heads, v_dim), (heads,), (heads,))
            ]
            for batch, _ in steps_of(lens, cuts)
        ]
        for executor, made in zip(both(), results, strict=True):
            ops = Tap(executor, keep=lambda name: name == "layer.state_norm")
            (state,) = ops.new_states(StateSpec(layers=(0,), num_slots=6, shapes=shapes))
            held = ops.load(weight), state
            added = None if silu else ops.load(bias)
            with np.errstate(all="ignore"):
                for (batch, _), (x, *given) in zip(steps_of(lens, cuts), inputs, strict=True):
                    made.append(ops.causal_conv(x, *held, batch, bias=added, silu=silu, name="op"))
                    made.append(ops.delta_rule(*given, state, batch, key_heads=of, name="layer.delta"))
            assert len(made) == 2 * len(inputs) and sum(map(len, ops.records["layer.state_norm"])) == sum(lens)
            made += ops.records["layer.state_norm"]
        for want, got in zip(*results, strict=True):
            assert_same_bits(got, want, f"{lens}, {shapes}")


def test_ranks_exchange_by_way_of_the_host() -> None:
    """A sum over two ranks with a bias, columns side by side, and rows of a table that both have a part of."""
    rng = rng_of()
    columns, x = 128, rng.standard_normal((3, 128)).astype(np.float32)
    halves = [random_blocks("Q4_0", 40, columns // 2, rng) for _ in range(2)]
    tables = [random_blocks("Q8_0", rows, 64, rng) for rows in (20, 30)]
    bias = vector(rng.standard_normal(40).astype(np.float32))

    def work(group: ThreadGroup) -> list[F32]:
        rank, made = group.rank, []
        for ops in both():
            own = np.ascontiguousarray(x[:, rank * 64 :][:, :64])
            given = {"leaves": (32, 64), "group": group, "name": "op"}
            made.append(ops.linear(own, ops.load(halves[rank]), ops.load(bias), **given))
            made.append(ops.gather_columns(own, Share(group, (64, 128)), name="op"))
            share = Share(group, (20, 50))
            made.append(ops.embedding(plain([0, 19, 20, 49]), ops.load(tables[rank]), share=share, name="op"))
        return made

    for made in on_all_ranks(2, work):
        for want, got in zip(made[:3], made[3:], strict=True):
            assert_same_bits(got, want)


def test_what_has_no_kernels_is_named() -> None:
    ops, rng = both()[1], rng_of()
    x, ids, by = np.ones((1, 32), np.float32), np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32)
    into = tuple(ops.load(random_blocks(stored, 32, 32, rng)) for stored in ("Q4_0", "Q8_0"))
    with pytest.raises(ExecutorError, match=r"^op: experts in Q4_0 and Q8_0: a GPU's kernels read one type a role$"):
        ops.experts(x, ids, by, into, into, into, leaves=(2,), name="op")


def test_memory_that_ends_is_refused_with_figures() -> None:
    """So many bytes are more than a process can address."""
    spec = CacheSpec(layers=(0,), num_blocks=2**38, block_size=16, num_kv_heads=2, k_dim=8, v_dim=8, dtype="float32")
    with pytest.raises(CapacityError, match=r"^a KV cache of 844424930131968 bytes: there is no room for 8444249301"):
        both()[1].new_cache([spec])


def test_without_the_module_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "karat._emulated", None)
    device._imported.cache_clear()
    with pytest.raises(ExecutorError, match=r"the cuda-emulated executor is not available: .*`make emulated`"):
        EmulatedOps()
    device._imported.cache_clear()
