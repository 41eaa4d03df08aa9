"""Mixtures of experts: transformers' own, ranks, and on the native executor the bits of each row and expert alone.

Covers: karat.ops.expert_biases.
"""

import os
import sys
from functools import cache
from itertools import pairwise
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.batch import plain_batch
from karat.checkpoint.slices import block_of, sliced
from karat.checkpoint.weights import Weight, WeightSpec
from karat.layers.experts import ExpertMixture
from karat.layers.place import Place
from karat.layers.shards import Cut
from karat.layers.weights import AS_STORED, WeightLoader
from karat.ops import native
from karat.ops.api import Routing, Tensor
from karat.ops.executor import Executor, StepLimits
from karat.ops.fma import fma
from karat.ops.integer_reference import IntegerOps
from karat.ops.integers import WIDTHS
from karat.ops.leaves import leaf_ends
from karat.ops.native_plan import PlanRecorder
from karat.ops.reference import ReferenceOps
from karat.quant import FORMATS
from karat.ranks.group import SINGLE, Group
from karat.ranks.processes import Ranks
from karat.ranks.shared_memory import create_file, make_room
from tests.support.seed import SEED
from tests.support.thread_group import ThreadGroup, on_all_ranks
from tests.support.weights import random_blocks

ON_RANK = """
import socket
from karat.children.connection import Connection
from karat.ops.native import NativeOps
from karat.ranks.lifeline import end_with_parent
from karat.ranks.shared_memory import SharedMemoryGroup
from tests.layers.test_experts import ROOM, Drawn, run

def main(arguments):
    rank, size, end, lifeline, shared = map(int, arguments)
    end_with_parent(lifeline)
    connection = Connection(socket.socket(fileno=end))
    group = SharedMemoryGroup(shared, rank, size, **ROOM, spins=False)
    drawn, ops = Drawn(32, INNER, EXPERTS, 2), NativeOps(threads=2)
    group.begin(int(connection.receive()))
    connection.send(run(drawn.on(ops, group, bias=True), ops, drawn.x(7)).tobytes())
    connection.receive()
"""
ROOM = {"slot_bytes": 4096, "whole_bytes": 4096}
Array = np.ndarray[Any, np.dtype[np.floating[Any]]]
needs_kernels = pytest.mark.skipif(bool(native.unavailable_reason()), reason=str(native.unavailable_reason()))


@cache
def _blocks(dtype: str, shape: tuple[int, int], seed: int) -> NDArray[np.uint8]:
    """The rows of a matrix [rows, bytes]; every expert has the same in an order of its own, as rounding K formats takes
    its time."""
    rng = np.random.default_rng([seed, *shape])
    format_ = FORMATS[dtype]
    if dtype == "E4M3":
        blocks = random_blocks(dtype, *shape, rng).data.reshape(-1, format_.block_bytes).copy()
        blocks[:, :4] = np.array([1 / (64 * np.sqrt(shape[1]))], "<f4").view(np.uint8)
    else:
        values = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        blocks = np.asarray(format_.quantize(values.reshape(-1, format_.block_size)))
    return np.ascontiguousarray(blocks).reshape(shape[0], -1)


class Drawn:
    """Experts of a size, whose weights are drawn by name and stored as `dtype`."""

    def __init__(self, hidden: int, inner: int, experts: int, chosen: int, dtype: str = "F32", seed: int = 0) -> None:
        self.hidden, self.inner, self.experts, self.chosen = hidden, inner, experts, chosen
        self.dtype, self.seed = dtype, seed

    def stored(self, name: str, shape: tuple[int, ...]) -> Weight:
        rng = np.random.default_rng([self.seed, *name.encode()])
        values = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        is_expert = ".experts." in name and len(shape) == 2
        if not is_expert or self.dtype == "F32":
            return Weight(name, "F32", shape, values.reshape(-1).view(np.uint8), Path("memory"))
        if self.dtype == "BF16":
            halves = (values.view(np.uint32) >> 16).astype(np.uint16)
            return Weight(name, "BF16", shape, halves.reshape(-1).view(np.uint8), Path("memory"))
        blocks = np.roll(_blocks(self.dtype, shape, self.seed), int(rng.integers(shape[0])), axis=0)
        return Weight(name, self.dtype, shape, blocks.reshape(-1), Path("memory"))

    @property
    def unit(self) -> int:
        """Columns that are never cut apart."""
        return lcm(1 if self.inner % 32 else 32, block_of(self.dtype)[0])

    @property
    def ends(self) -> tuple[tuple[int, ...], bool]:
        """Where leaves end, and whether that is among columns."""
        by_columns = self.inner // self.unit >= 8
        return leaf_ends(*((self.inner, self.unit) if by_columns else (self.experts, 1))), by_columns

    def on(
        self, ops: Executor, group: Group = SINGLE, *, renormalised: bool = True, bias: bool = False
    ) -> ExpertMixture:
        def take(spec: WeightSpec) -> Any:
            return WeightLoader(ops, {spec.source: self.stored(spec.source, spec.shape)}, AS_STORED)(spec)

        place = Place(take, "mlp", {Cut(self.inner, 1, of_experts=True): self.unit}, group)
        return self.at(place, renormalised=renormalised, bias=bias)

    def at(self, place: Place, *, renormalised: bool = True, bias: bool = False) -> ExpertMixture:
        routing = Routing(self.chosen, renormalised=renormalised)
        return ExpertMixture(place, self.hidden, self.inner, num_experts=self.experts, routing=routing, bias=bias)

    def x(self, rows: int, dtype: str = "float32") -> Array:
        return np.random.default_rng(self.seed).standard_normal((rows, self.hidden)).astype(dtype)


def rng_of(*of: object) -> np.random.Generator:
    return np.random.default_rng([*f"{SEED} {of}".encode()])


def run(experts: ExpertMixture, ops: Executor, x: Array) -> Array:
    return np.asarray(ops.read(experts(ops, x, None, None, {})))


@given(
    experts=st.integers(1, 20),
    chosen=st.integers(1, 5),
    renormalised=st.booleans(),
    inner=st.integers(1, 40),
    seed=st.integers(0, 999),
)
@settings(max_examples=20)
def test_they_are_transformers_own(experts: int, chosen: int, renormalised: bool, inner: int, seed: int) -> None:
    """In float64, to 1e-12: only the order of sums differs. Ties do not occur in drawn logits."""
    torch = pytest.importorskip("torch", reason="transformers needs torch")
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    from tests.support.float64 import Widen

    drawn = Drawn(24, inner, experts, min(chosen, experts), seed=seed)
    config = Qwen3MoeConfig(
        hidden_size=24,
        moe_intermediate_size=inner,
        num_experts=experts,
        num_experts_per_tok=drawn.chosen,
        norm_topk_prob=renormalised,
        experts_implementation="eager",
    )
    theirs = Qwen3MoeSparseMoeBlock(config).double()

    def stored(name: str, *shape: int) -> Any:
        return torch.from_numpy(drawn.stored(f"mlp.{name}.weight", shape).to_array(np.dtype(np.float64)))

    with torch.no_grad():
        theirs.gate.weight.copy_(stored("gate", experts, 24))
        for expert in range(experts):
            both = [stored(f"experts.{expert}.{name}_proj", inner, 24) for name in ("gate", "up")]
            theirs.experts.gate_up_proj[expert].copy_(torch.cat(both))
            theirs.experts.down_proj[expert].copy_(stored(f"experts.{expert}.down_proj", 24, inner))
        x = drawn.x(9, "float64")
        with Widen():
            want = theirs(torch.from_numpy(x)[None])
    want = (want[0] if isinstance(want, tuple) else want).reshape(9, 24).numpy()
    ops = ReferenceOps("float64")
    assert np.abs(run(drawn.on(ops, renormalised=renormalised), ops, x) - want).max() <= 1e-12 * np.abs(want).max()


# By columns, in leaves of one block and of several; in ranges of ids.
CUTS = [
    pytest.param(dtype, inner, id=f"{dtype}-{inner}")
    for dtype, inners in {
        "F32": (48, 96, 288),
        "BF16": (8, 7),
        "Q8_0": (288, 224),
        "Q4_0": (320, 96),
        "MXFP4": (256, 96),
        "Q4_K": (2048, 768),
        "Q6_K": (2304, 256),
        "E4M3": (1152, 384),
    }.items()
    for inner in inners
]


@pytest.mark.drawn(6)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize(("dtype", "inner"), CUTS)
@pytest.mark.parametrize("executor", ["reference", pytest.param("native", marks=needs_kernels)])
def test_ranks_have_the_bits_of_one_process(executor: str, dtype: str, inner: int, size: int, bias: bool) -> None:
    """Of three experts in ranges some ranks have none: their leaves are 0. The reference's bits depend on BLAS."""
    rng = rng_of(executor, dtype, inner, size, bias)
    hidden, seed = 256 if dtype in FORMATS else 32, int(rng.integers(999))
    drawn = Drawn(hidden, inner, int(rng.choice([3, 11])), 3, dtype, seed)
    x = drawn.x(int(rng.choice([7, 40])))

    def ops() -> Executor:
        return ReferenceOps("float32") if executor == "reference" else native.NativeOps(threads=1)

    whole = run(drawn.on(ops(), bias=bias), ops(), x)

    def on_rank(group: ThreadGroup) -> Array:
        own = ops()
        return run(drawn.on(own, group, bias=bias), own, x)

    for result in on_all_ranks(size, on_rank):
        if executor == "native":
            np.testing.assert_array_equal(result, whole)
        else:
            np.testing.assert_allclose(result, whole, rtol=0, atol=1e-5 * np.abs(whole).max())


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("experts", [3, 11])
def test_ranks_have_the_bits_of_one_process_on_the_reference(size: int, experts: int) -> None:
    """By ranges of ids: a product is whole on its rank. Of parts of its columns BLAS gives other bits."""
    drawn = Drawn(32, 7, experts, 3)
    assert not drawn.ends[1]
    x, ops = drawn.x(7), ReferenceOps("float32")
    whole = run(drawn.on(ops), ops, x)

    def on_rank(group: ThreadGroup) -> Array:
        own = ReferenceOps("float32")
        return run(drawn.on(own, group), own, x)

    for result in on_all_ranks(size, on_rank):
        np.testing.assert_array_equal(result, whole)


@needs_kernels
@pytest.mark.parametrize(
    ("size", "experts", "inner"),
    [(2, 11, 48), (2, 11, 96), (4, 2, 96), (4, 2, 48), pytest.param(8, 11, 48, marks=pytest.mark.long)],
)
def test_plans_of_ranks_add_along_the_tree(
    size: int, experts: int, inner: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that show each other their sums in shared memory. Two of four ranks have none of two experts of 96."""
    source = ON_RANK.replace("EXPERTS", str(experts)).replace("INNER", str(inner))
    (tmp_path / "on_rank.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    drawn, ops = Drawn(32, inner, experts, 2), native.NativeOps(threads=1)
    want = run(drawn.on(ops, bias=True), ops, drawn.x(7)).tobytes()
    shared = create_file()
    make_room(shared, 8, **ROOM)
    ranks = Ranks("on_rank", size, [shared])
    try:
        assert ranks.exchange([b"4096"] * size) == [want] * size
    finally:
        ranks.close()
        os.close(shared)


@needs_kernels
@pytest.mark.parametrize(("dtype", "inner"), [("Q8_0", 256), ("Q8_0", 224), ("Q4_K", 256), ("Q4_K", 2048)])
def test_integers_are_those_of_the_reference(dtype: str, inner: int) -> None:
    """Where a rounding of an activation falls to the other side, it is one unit of 32,639."""
    drawn = Drawn(256, inner, 9, 3, dtype)
    x, fast, defined = drawn.x(36), native.NativeOps(threads=1), IntegerOps(WIDTHS["int16"])
    want = run(drawn.on(defined), defined, x)
    assert np.abs(run(drawn.on(fast), fast, x) - want).max() <= 1e-4 * np.abs(want).max()


@needs_kernels
@pytest.mark.drawn(8)
@pytest.mark.parametrize(("dtype", "inner"), CUTS)
@pytest.mark.parametrize("isa", native.supported_isas())
def test_a_row_has_the_bits_of_its_experts_alone(isa: str, dtype: str, inner: int) -> None:
    """Each pair of a row and an expert computed by ops of one row, and summed by the contract.

    A leaf of columns is a layer of these alone: integers are rounded in blocks that no leaf cuts.
    """
    rng = rng_of(isa, dtype, inner)
    drawn = Drawn(256 if dtype in FORMATS else 32, inner, 9, 3, dtype, seed=int(rng.integers(999)))
    ops = native.NativeOps(threads=int(rng.integers(1, 4)), isa=isa)
    bias = bool(rng.integers(2))
    experts, x = drawn.on(ops, bias=bias), drawn.x(int(rng.choice([1, 2, 23, 33])))
    got = run(experts, ops, x)
    ids, weights = ops.route(experts.router(ops, x), Routing(3, renormalised=True), names=("op.ids", "op.weights"))
    ends, by_columns = drawn.ends
    biases = [
        [drawn.stored(f"mlp.experts.{e}.{name}_proj.bias", (size,)) for e in range(9)]
        for name, size in (("gate", inner), ("up", inner), ("down", drawn.hidden))
    ]
    for row in range(len(x)):
        leaves, late = [np.zeros(drawn.hidden, np.float32) for _ in ends], np.zeros(drawn.hidden, np.float32)
        for expert, weight in sorted(zip(ids[row].tolist(), weights[row], strict=True)):
            of_gate, of_up, of_down = (ops.load(each[expert]) if bias else None for each in biases)
            gate = ops.linear(x[row : row + 1], experts.gates[expert], of_gate, name="gate")
            up = ops.linear(x[row : row + 1], experts.ups[expert], of_up, name="up")
            inside, by = ops.silu_mul(gate, up, name="act"), np.full(drawn.hidden, weight)
            if not by_columns:
                given = ops.linear(inside, experts.downs[expert], of_down, name="down")[0]
                leaf = next(number for number, end in enumerate(ends) if expert < end)
                leaves[leaf] = fma(by, given, leaves[leaf])
                continue
            whole = drawn.stored(f"mlp.experts.{expert}.down_proj.weight", (drawn.hidden, drawn.inner))
            for leaf, (start, end) in enumerate(pairwise((0, *ends))):
                spec = WeightSpec(whole.name, whole.shape, 1, ((start, end),))
                given = ops.linear(inside[:, start:end], ops.load(sliced(whole, spec)), None, name="down")[0]
                leaves[leaf] = fma(by, given, leaves[leaf])
            if bias:
                late = fma(by, biases[2][expert].to_array(np.dtype(np.float32)), late)
        while len(leaves) > 1:
            leaves = [left + right for left, right in zip(leaves[::2], leaves[1::2], strict=True)]
        np.testing.assert_array_equal(
            got[row], leaves[0] + late if by_columns and bias else leaves[0], err_msg=f"row {row}"
        )


@needs_kernels
@pytest.mark.parametrize("inner", [96, 256])
@pytest.mark.parametrize("dtype", ["F32", "Q8_0"])
def test_a_plan_has_the_bits_of_single_ops_whatever_the_step(dtype: str, inner: int) -> None:
    """One plan, whose registers steps of several sizes use again."""
    drawn = Drawn(64, inner, 16, 4, dtype)
    ops = native.NativeOps(threads=2)
    experts, x = drawn.on(ops, bias=True), drawn.x(40)
    want = run(experts, ops, x)
    recorder = PlanRecorder(ops.isa, 2)
    given = recorder.input((64,))
    result: Tensor = experts(recorder, given, None, None, {})
    recorder.finish(StepLimits(num_tokens=40, num_logit_rows=1, num_seqs=1, context_len=40), [result])
    for rows in (slice(0, 40), slice(3, 4), slice(7, 19), slice(0, 40)):
        part = x[rows]
        recorder.fill(given, part)
        recorder.run(plain_batch(range(len(part))))
        np.testing.assert_array_equal(recorder.value(result), want[rows])
