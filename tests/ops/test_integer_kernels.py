"""Native linear layers of block formats have the bits of numeric contract 5 in every build, NaN by place.

The definition is karat.ops.integers. Rows are independent of each other, so it is computed once for many tokens, and
kernels are asked for some of them.

Covers: karat.ops.native.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.batch import plain_batch
from karat.checkpoint.weights import Weight
from karat.ops.api import GateUp, Linear, Op, Ops, Qkv
from karat.ops.executor import StepLimits
from karat.ops.integers import WIDTHS, coded, linear
from karat.ops.leaves import NUM_LEAVES, leaf_ends
from karat.ops.native import NativeOps, compiled_isas, supported_isas, unavailable_reason
from karat.quant import CODINGS, FORMATS
from tests.support.activations import rows_of_all_kinds
from tests.support.extreme_codes import digits_of_all_kinds, extreme_codes
from tests.support.integer_digests import NAMES, digest, stated
from tests.support.weights import random_blocks, weight_of

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

F32 = NDArray[np.float32]
TOKENS = (1, 2, 3, 4, 5, 7, 16, 33, 130)
SEEDS = st.integers(0, 2**32 - 1)

every_format = pytest.mark.parametrize("stored", CODINGS)
every_width = pytest.mark.parametrize("width", NAMES)


def native_ops(isa: str, width: str, threads: int = 1) -> NativeOps:
    return NativeOps(isa=isa, threads=threads, activations=width)


def vector(values: F32) -> Weight:
    return Weight("bias", "F32", values.shape, values.view(np.uint8), Path("in-memory"))


def defined(x: F32, weight: Weight, width: str, ends: tuple[int, ...], bias: F32 | None = None) -> F32:
    """A layer by the definition; one of plain numbers by the kernels of contract 4."""
    if weight.dtype not in CODINGS:
        ops = NativeOps(isa="generic", threads=1)
        return ops.linear(x, ops.load(weight), None if bias is None else ops.load(vector(bias)), leaves=ends, name="op")
    out = linear(x, coded(weight), WIDTHS[width], ends)
    with np.errstate(all="ignore"):
        return out if bias is None else out + bias


def assert_same_bits(got: F32, want: F32, message: str = "") -> None:
    """NaN where there is NaN; its sign and payload are not promised."""
    assert got.shape == want.shape and got.dtype == want.dtype == np.float32
    bits = [np.where(np.isnan(r), np.uint32(0x7FC00000), np.ascontiguousarray(r).view(np.uint32)) for r in (got, want)]
    np.testing.assert_array_equal(*bits, err_msg=message)


def columns_of(stored: str, blocks: int) -> int:
    """A row of an odd number of blocks of 32, or of blocks of 256."""
    return 3 * 256 if FORMATS[stored].block_size == 256 else 32 * blocks


@pytest.mark.parametrize("isa", compiled_isas())
def test_digests(isa: str) -> None:
    """Those that the definition made, in every instruction set that this CPU has; the others are listed as skipped."""
    if isa not in supported_isas():
        pytest.skip(f"this CPU cannot run the kernel build {isa}")

    def by_kernels(weight: Weight, x: F32, ends: tuple[int, ...], width: str) -> F32:
        ops = native_ops(isa, width)
        return ops.linear(x, ops.load(weight), leaves=ends, name="op")

    for (stored, name), found in stated().items():
        assert digest(stored, name, by_kernels) == found, f"{stored}, {name}"


@pytest.mark.drawn(1, each=("stored", "width"))
@every_format
@every_width
def test_any_number_of_tokens_has_the_bits_of_the_definition(stored: str, width: str) -> None:
    """Rows of every kind; a matrix of random blocks; one leaf, and eight (some empty) with a bias."""
    rng = np.random.default_rng([*stored.encode(), *width.encode()])
    columns = columns_of(stored, 11)
    weight = random_blocks(stored, 150, columns, rng)
    kinds = rows_of_all_kinds(columns, rng)
    x = np.concatenate([kinds, rng.standard_normal((TOKENS[-1], columns)).astype(np.float32), kinds])
    bias = rng.standard_normal(150).astype(np.float32)
    cuts: list[tuple[tuple[int, ...], F32 | None]] = [
        ((columns,), None),
        (leaf_ends(columns, FORMATS[stored].block_size), bias),
    ]
    for ends, given_bias in cuts:
        want = defined(x, weight, width, ends, given_bias)
        for isa in supported_isas():
            for number, tokens in enumerate(TOKENS):
                ops = native_ops(isa, width, 1 + number % 2)
                loaded, added = ops.load(weight), None if given_bias is None else ops.load(vector(given_bias))
                starts = [0, *rng.integers(len(x) - tokens + 1, size=1), len(x) - tokens]
                if tokens == 1:
                    starts = [*range(len(kinds))]
                for start in starts:
                    some = slice(start, start + tokens)
                    got = ops.linear(x[some], loaded, added, leaves=ends, name="op")
                    assert_same_bits(got, want[some], f"{isa}, {tokens} tokens from {start}, {len(ends)} leaves")


@pytest.mark.drawn(12)
@every_format
@every_width
def test_codes_and_digits_at_both_extremes(stored: str, width: str) -> None:
    """Every pair of extremes: sums in 16 bits, where a kernel has them, are the largest they can be."""
    rng = np.random.default_rng(5)
    columns = 512
    weight = extreme_codes(stored, columns, rng)
    codes, coding = coded(weight).codes, CODINGS[stored]
    assert (codes.min(), codes.max()) == (coding.lowest, coding.highest)
    assert (codes == coding.lowest).all(axis=1).any() and (codes == coding.highest).all(axis=1).any()
    x = digits_of_all_kinds(width, columns, rng)
    want = defined(x, weight, width, (columns,))
    assert np.isfinite(want).all()
    for isa in supported_isas():
        ops = native_ops(isa, width)
        loaded = ops.load(weight)
        assert_same_bits(ops.linear(x, loaded, name="op"), want, isa)
        for tokens in (1, 2, 5):
            for start in range(0, len(x) - tokens + 1, tokens):
                some = slice(start, start + tokens)
                assert_same_bits(ops.linear(x[some], loaded, name="op"), want[some], f"{isa}, {start}")


@every_format
@settings(max_examples=8)
@given(
    width=st.sampled_from(NAMES),
    rows=st.sampled_from([1, 15, 16, 17, 31, 63, 64, 65, 127, 129, 200]),
    blocks=st.integers(1, 20),
    unit=st.sampled_from([None, 32, 64, 256]),
    tokens=st.sampled_from([1, 1, 2, 3, 6, 8, 12, 40]),
    threads=st.integers(1, 3),
    any_scales=st.booleans(),
    seed=SEEDS,
)
def test_any_shape_has_the_bits_of_the_definition(
    stored: str,
    width: str,
    rows: int,
    blocks: int,
    unit: int | None,
    tokens: int,
    threads: int,
    any_scales: bool,
    seed: int,
) -> None:
    """Also with any bytes as blocks: scales and minimums may be infinite or NaN."""
    rng = np.random.default_rng(seed)
    format_ = FORMATS[stored]
    columns = max(format_.block_size, unit or 0) * max(1, blocks * 32 // format_.block_size)
    if unit is not None:
        unit = max(unit, format_.block_size)
    weight = random_blocks(stored, rows, columns, rng)
    if any_scales:
        weight = Weight(
            "weight", stored, weight.shape, rng.integers(0, 256, weight.stored.shape, np.uint8), weight.file
        )
    x = rng.standard_normal((tokens, columns)).astype(np.float32)
    x[0] = rows_of_all_kinds(columns, rng)[rng.integers(10)]
    ends = leaf_ends(columns, unit)
    want = defined(x, weight, width, ends)
    for isa in supported_isas():
        ops = native_ops(isa, width, threads)
        assert_same_bits(ops.linear(x, ops.load(weight), leaves=ends, name="op"), want, isa)


@pytest.mark.drawn(12)
@every_format
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_ranks_that_own_columns_have_the_bits_of_the_whole(stored: str, num_ranks: int) -> None:
    """Each rank quantises its own columns; blocks of 32 lie where they lay."""
    rng = np.random.default_rng(num_ranks)
    unit = max(64, FORMATS[stored].block_size)
    rows, columns, per_rank = 70, 9 * unit, NUM_LEAVES // num_ranks
    weight = random_blocks(stored, rows, columns, rng)
    ends = leaf_ends(columns, unit)
    x = rng.standard_normal((9, columns)).astype(np.float32)
    row_bytes = len(weight.stored) // rows
    for width in NAMES:
        want = defined(x, weight, width, ends)
        for isa in supported_isas():
            ops = native_ops(isa, width)
            sums = []
            for rank in range(num_ranks):
                first, last = (0, *ends)[rank * per_rank], ends[(rank + 1) * per_rank - 1]
                span = (first * row_bytes // columns, last * row_bytes // columns)
                part = Weight(
                    "weight", stored, (rows, last - first), weight.stored, weight.file, None, weight.shape, span
                )
                own = tuple(end - first for end in ends[rank * per_rank : (rank + 1) * per_rank])
                for tokens in (1, 9):
                    sums.append(ops.linear(x[:tokens, first:last], ops.load(part), leaves=own, name="op"))
            for start, tokens in enumerate((1, 9)):
                tree = sums[start::2]
                while len(tree) > 1:
                    tree = [left + right for left, right in zip(tree[::2], tree[1::2], strict=True)]
                assert_same_bits(tree[0], want[:tokens], f"{isa}, {width}")


class Defined(Ops):
    """The native executor with linear layers by the definition."""

    def __init__(self, ops: NativeOps, width: str) -> None:
        self._ops, self._width = ops, width

    def load(self, weight: Weight) -> Any:
        """Matrices as they are stored; biases as both need them."""
        return weight if len(weight.shape) == 2 and weight.name != "table" else self._ops.load(weight)

    def apply(self, op: Op[Any]) -> Any:
        match op:
            case Linear(x, weight, bias, leaves=leaves):
                ends = leaves or (weight.shape[1],)
                return defined(x, weight, self._width, ends, None if bias is None else bias.values())
            case Qkv():
                return tuple(self.apply(linear).reshape(len(op.x), -1, op.head_dim) for linear in op.alone())
            case GateUp():
                return tuple(self.apply(linear) for linear in op.alone())
        return self._ops.apply(op)


def layers(ops: Any, step: Any, weights: dict[str, Any], ends: dict[str, tuple[int, ...]], last: str) -> Any:
    """What a decoder's layer makes of linear ops, without attention, up to the result called `last`."""
    found: dict[str, Any] = {}
    found["x"] = ops.embedding(step, weights["table"], name="x")
    found["normed"] = ops.rms_norm(found["x"], weights["norm"], 1e-6, name="normed")
    heads = ops.qkv(
        found["normed"],
        (weights["q"], weights["k"], weights["v"]),
        (weights["q_bias"], weights["k_bias"], weights["v_bias"]),
        head_dim=32,
        names=("q", "k", "v"),
    )
    found |= zip(("q", "k", "v"), heads, strict=True)
    if last in found:
        return found[last]
    found["o"] = ops.linear(found["normed"], weights["o"], leaves=ends["o"], name="o")
    found["sum"] = ops.add(found["x"], found["o"], name="sum")
    if last in found:
        return found[last]
    again = ops.rms_norm(found["sum"], weights["norm"], 1e-6, name="again")
    gate, up = ops.gate_up(again, (weights["gate"], weights["up"]), None, names=("gate", "up"))
    act = ops.silu_mul(gate, up, name="act")
    if last == "act":
        return act
    return ops.add(found["sum"], ops.linear(act, weights["down"], leaves=ends["down"], name="down"), name="out")


@settings(max_examples=8)
@given(
    width=st.sampled_from(NAMES),
    types=st.lists(st.sampled_from([*CODINGS, "F32", "BF16"]), min_size=3, max_size=3),
    alike=st.booleans(),
    tokens=st.sampled_from([1, 1, 2, 4, 9, 33]),
    threads=st.integers(1, 3),
    seed=SEEDS,
)
def test_plans_have_the_bits_of_ops_alone_and_of_the_definition(
    width: str, types: list[str], alike: bool, tokens: int, threads: int, seed: int
) -> None:
    """Of norms, residuals and SwiGLU around layers, and of matrices of several formats that read one input."""
    rng = np.random.default_rng(seed)
    hidden, wide = 512, 768
    q, k, v = types
    gate, up = (k, k) if alike else (k, v)
    shapes = {"q": (q, hidden), "k": (k, 64), "v": (v, 96), "o": (q, hidden), "gate": (gate, wide), "up": (up, wide)}
    stored = {name: _ordinary(rows, hidden, kind, rng) for name, (kind, rows) in shapes.items()}
    stored["down"] = _ordinary(hidden, wide, v, rng)
    for name in ("q", "k", "v"):
        stored[f"{name}_bias"] = vector(rng.standard_normal(shapes[name][1]).astype(np.float32))
    stored["norm"] = vector(rng.uniform(0.5, 1.5, hidden).astype(np.float32))
    stored["table"] = weight_of(rng.standard_normal((tokens, hidden)).astype(np.float32), "F32", "table")
    ends = {"o": leaf_ends(hidden, 256), "down": leaf_ends(wide, 256)}
    batch = plain_batch(range(tokens))
    exact = Defined(NativeOps(isa="generic", threads=1), width)
    weights = {name: exact.load(weight) for name, weight in stored.items()}
    for last in ("q", "k", "v", "sum", "act", "out"):
        want = layers(exact, batch, weights, ends, last)
        assert np.isfinite(want).all()
        for isa in supported_isas():
            ops = native_ops(isa, width, threads)
            loaded = {name: ops.load(weight) for name, weight in stored.items()}
            assert_same_bits(layers(ops, batch, loaded, ends, last), want, f"{isa}: {last}, op by op")
            limits = StepLimits(num_tokens=40, num_logit_rows=0, num_seqs=1, context_len=40)

            def forward(recorder: Any, step: Any, loaded: Any = loaded, last: str = last) -> Any:
                return layers(recorder, step, loaded, ends, last)

            run = ops.runner(forward, limits)
            assert_same_bits(np.asarray(run(batch)).astype(np.float32), want, f"{isa}: {last}, as a plan")


def _ordinary(rows: int, columns: int, stored: str, rng: np.random.Generator) -> Weight:
    """Weights of ordinary size: as they are quantised, or random blocks of formats that are not written."""
    values = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
    return weight_of(values, stored)
