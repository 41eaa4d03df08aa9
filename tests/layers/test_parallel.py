"""Each parallel layer against its unsharded self, in float64; mistakes that only sharding can have are seen here.

Covers: karat.layers.attention, karat.layers.linear, karat.layers.merged, karat.layers.mlp, karat.layers.norm,
karat.layers.place, karat.layers.shards, karat.layers.vocabulary, karat.layers.weights.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from karat.batch import plain_batch
from karat.checkpoint.weights import Weight, WeightSpec
from karat.config import LayerShape, RopeConfig
from karat.errors import ExecutorError
from karat.kv.cache import new_caches
from karat.kv.groups import Keys
from karat.layers import linear, merged, shards, vocabulary
from karat.layers.attention import Attention
from karat.layers.linear import ColumnParallelLinear, RowParallelLinear
from karat.layers.merged import QKVParallelLinear
from karat.layers.mixer import Rotation
from karat.layers.mlp import GatedMLP
from karat.layers.place import Place
from karat.layers.shards import Cut, CutUnits, Wholes
from karat.layers.vocabulary import ParallelLMHead, VocabParallelEmbedding
from karat.layers.weights import AS_STORED, WeightLoader
from karat.ops.api import Linear, Op, Ops, SquareSums, Tensor
from karat.ops.executor import Executor
from karat.ops.leaves import leaf_ends
from karat.ops.reference import ReferenceOps
from karat.ops.tap import Tap
from karat.ranks.group import SINGLE, Group, PlannedRank, tree_sum
from tests.support.thread_group import ThreadGroup, on_all_ranks

Array = np.ndarray[Any, np.dtype[np.float64]]
SIZES = (2, 4, 8)
HIDDEN, ROWS = 6, 3
ROPE = RopeConfig(theta=10000.0)
ONE_BY_ONE = Wholes()


class RandomWeights(dict[str, Weight]):
    """Any float32 tensor that is asked for by a spec, always the same one for a name."""

    def take(self, ops: Executor) -> Callable[[WeightSpec], Any]:
        def take(spec: WeightSpec) -> Any:
            if spec.source not in self:
                rng = np.random.default_rng(list(spec.source.encode()))
                values = rng.standard_normal(spec.shape).astype(np.float32)
                self[spec.source] = Weight(
                    spec.source, "F32", spec.shape, values.reshape(-1).view(np.uint8), Path("memory")
                )
            return WeightLoader(ops, {spec.source: self[spec.source]}, AS_STORED)(spec)

        return take


def compare(
    size: int,
    make: Callable[[Callable[[WeightSpec], Any], Group], Any],
    call: Callable[[Any, Ops, Group], tuple[Array, ...]],
    join: Callable[[list[tuple[Array, ...]]], tuple[Array, ...]],
) -> float:
    """The largest relative difference of a layer on `size` ranks from itself on one."""
    weights = RandomWeights()
    ops = ReferenceOps()
    want = call(make(weights.take(ops), SINGLE), ops, SINGLE)

    def on_rank(group: ThreadGroup) -> tuple[Array, ...]:
        return call(make(weights.take(ops), group), ops, group)

    got = join(on_all_ranks(size, on_rank))
    assert [a.shape for a in got] == [b.shape for b in want]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(got, want, strict=True))


def side_by_side(parts: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    return tuple(np.concatenate(part, axis=1) for part in zip(*parts, strict=True))


def the_same(parts: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    for part in parts[1:]:
        for a, b in zip(part, parts[0], strict=True):
            np.testing.assert_array_equal(a, b, err_msg="ranks differ")
    return parts[0]


def x_of(columns: int) -> Array:
    return np.random.default_rng(columns).standard_normal((ROWS, columns))


def at(take: Any, group: Group, units: CutUnits = ONE_BY_ONE) -> Place:
    return Place(take, "layer", units, group)


def column(size: int, out: int = 40, bias: bool = True) -> float:
    def make(take: Any, group: Group) -> ColumnParallelLinear:
        pieces = None if group.size == 1 else (shards.part(shards.tree_ends(out, 1, group), group),)
        return ColumnParallelLinear(at(take, group), out, HIDDEN, bias=bias, pieces=pieces)

    return compare(size, make, lambda layer, ops, group: (layer(ops, x_of(HIDDEN)),), side_by_side)


def row(size: int, columns: int = 40, unit: int = 1, bias: bool = True) -> float:
    def call(layer: RowParallelLinear, ops: Ops, group: Group) -> tuple[Array, ...]:
        start, stop = shards.part(shards.tree_ends(columns, unit, group), group)
        return (layer(ops, x_of(columns)[:, start:stop]),)

    make = lambda take, group: RowParallelLinear(at(take, group), HIDDEN, columns, bias=bias, whole=unit)  # noqa: E731
    return compare(size, make, call, the_same)


def mlp(size: int, inner: int = 40, bias: bool = True) -> float:
    """gate and up, and down after them."""

    def make(take: Any, group: Group) -> GatedMLP:
        return GatedMLP(at(take, group, {Cut(inner, 1): math.gcd(inner, 32)}), HIDDEN, inner, bias=bias)

    return compare(size, make, lambda layer, ops, group: (layer(ops, x_of(HIDDEN), None, None, {}),), the_same)


def qkv(size: int, heads: int = 14, kv_heads: int = 2, head_dim: int = 10, bias: bool = True) -> float:
    """q, and for each query head the k and v that it reads: whole KV heads are not compared, their use is."""

    def make(take: Any, group: Group) -> QKVParallelLinear:
        return QKVParallelLinear(
            at(take, group), HIDDEN, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, bias=bias
        )

    def call(layer: QKVParallelLinear, ops: Ops, group: Group) -> tuple[Array, ...]:
        q, k, v = layer(ops, x_of(HIDDEN))  # [rows, heads, head_dim]
        groups = shards.own_groups(heads, kv_heads, 1, group)
        assert groups.fit(q.shape[1], k.shape[1]), "heads that read KV heads which are not there"
        read = (groups.first + np.arange(q.shape[1])) // groups.size
        return q, k[:, read], v[:, read]

    return compare(size, make, call, side_by_side)


def attention(
    size: int, heads: int = 14, kv_heads: int = 2, rope: RopeConfig | None = ROPE, all_heads: bool = False
) -> float:
    """All of it, over a cache for a rank's own KV heads."""
    shape = LayerShape(num_heads=heads, num_kv_heads=kv_heads, head_dim=10, inner_size=0, window=None, rope=rope)
    batch = plain_batch(range(ROWS))

    def call(layer: Attention, ops: Ops, group: Group) -> tuple[Array, ...]:
        start, stop = shards.own_kv_heads(heads, kv_heads, 1, group)
        assert layer.keeps == Keys(stop - start, 10, 10, None)
        (cache,) = new_caches(ops, [layer.keeps], "float64", [1], block_size=ROWS)
        ropes = {Rotation(ROPE, 10): ops.rope_table(ROPE, head_dim=10, num_positions=ROWS)}
        tap = Tap(ops)
        out = layer(tap, x_of(HIDDEN), tap.begin(batch), cache, ropes)
        assert {name for name in tap.records if "rope" in name} == ({"layer.q_rope", "layer.k_rope"} if rope else set())
        return (out,)

    def make(take: Any, group: Group) -> Attention:
        eps = 1e-2 if all_heads else None
        return Attention(
            at(take, group), HIDDEN, shape, qkv_bias=True, o_bias=True, qk_norm_eps=eps, norms_all_heads=all_heads
        )

    return compare(size, make, call, the_same)


def ends_of_vocabulary(size: int, vocab: int = 61, tied: bool = True) -> float:
    """Embedding and head."""

    def make(take: Any, group: Group) -> tuple[VocabParallelEmbedding, ParallelLMHead]:
        embedding = VocabParallelEmbedding(at(take, group) / "embedding", vocab, HIDDEN, is_head=tied)
        head = ParallelLMHead(at(take, group) / "head", vocab, HIDDEN, tied_to=embedding if tied else None)
        return embedding, head

    def call(layers: tuple[VocabParallelEmbedding, ParallelLMHead], ops: Ops, group: Group) -> tuple[Array, ...]:
        batch = plain_batch(range(vocab))
        return layers[0](ops, ops.begin(batch)), layers[1](ops, x_of(HIDDEN))

    return compare(size, make, call, the_same)


@settings(max_examples=40)
@given(size=st.sampled_from(SIZES), data=st.data(), bias=st.booleans())
def test_layers_over_random_shapes(size: int, data: st.DataObject, bias: bool) -> None:
    columns = data.draw(st.sampled_from([8, 9, 40, 77, 130, 288, 2304]))
    assert column(size, columns, bias) < 1e-13
    assert row(size, columns, bias=bias) < 1e-13
    assert mlp(size, columns, bias) < 1e-13
    kv_heads = data.draw(st.sampled_from([1, 2, 3, 4, 5]))
    heads = kv_heads * data.draw(st.sampled_from([1, 2, 3, 5, 7]))
    head_dim = data.draw(st.sampled_from([6, 10, 128]))
    assume(heads >= size)
    assert qkv(size, heads, kv_heads, head_dim, bias) < 1e-13
    if head_dim == 10:
        rope, all_heads = data.draw(st.sampled_from([None, ROPE])), data.draw(st.booleans())
        assert attention(size, heads, kv_heads, rope, all_heads) < 1e-13
    assert row(size, heads * head_dim, unit=head_dim, bias=bias) < 1e-13
    assert ends_of_vocabulary(size, data.draw(st.sampled_from([8, 61, 127, 700])), bias) < 1e-13


@given(columns=st.integers(1, 3000), unit=st.sampled_from([1, 2, 6, 64, 128]), size=st.sampled_from((1, *SIZES)))
def test_parts_cover_the_axis_and_leaves_are_those_of_the_tree(columns: int, unit: int, size: int) -> None:
    columns *= unit
    whole = leaf_ends(columns, unit)
    joined: list[int] = []
    end = 0
    for rank in range(size):
        group = PlannedRank(rank, size)
        start, stop = shards.part(shards.tree_ends(columns, unit, group), group)
        assert start == end and start % unit == 0
        joined += [start + leaf for leaf in shards.own_leaves(columns, unit, group)]
        end = stop
    assert end == columns and tuple(joined) == whole


@given(
    kv_heads=st.integers(1, 8),
    per_kv=st.integers(1, 8),
    unit=st.integers(1, 4),
    size=st.sampled_from((1, *SIZES)),
)
def test_every_query_head_reads_its_own_kv_head(kv_heads: int, per_kv: int, unit: int, size: int) -> None:
    heads = kv_heads * per_kv
    unit = math.gcd(heads, unit)
    for rank in range(size):
        group = PlannedRank(rank, size)
        start, stop = shards.own_heads(heads, unit, group)
        if start == stop:
            continue
        held = list(range(*shards.own_kv_heads(heads, kv_heads, unit, group)))
        groups = shards.own_groups(heads, kv_heads, unit, group)
        read = [head // per_kv for head in range(start, stop)]
        assert held == sorted(set(read)), "each KV head that is read is held, once"
        assert [held[(groups.first + head) // groups.size] for head in range(stop - start)] == read


@given(kv_heads=st.integers(1, 8), per_kv=st.integers(1, 8), unit=st.integers(1, 4))
def test_each_kv_head_is_in_the_leaf_of_its_first_query_head(kv_heads: int, per_kv: int, unit: int) -> None:
    heads = kv_heads * per_kv
    unit = math.gcd(heads, unit)
    found: dict[int, list[list[int]]] = {}
    for size in (1, *SIZES):
        found[size] = []
        for group in (PlannedRank(rank, size) for rank in range(size)):
            held = list(range(*shards.own_kv_heads(heads, kv_heads, unit, group)))
            start, *ends = shards.own_kv_leaves(heads, kv_heads, unit, group)
            assert ends[-1] == len(held), "each head that is held and no other rank's is counted"
            found[size] += [held[start:end] for start, end in zip((start, *ends[:-1]), ends, strict=True)]
    want = [
        [head // per_kv for head in range(start, end) if head % per_kv == 0]
        for start, end in zip((0, *leaf_ends(heads, unit)[:-1]), leaf_ends(heads, unit), strict=True)
    ]
    assert all(leaves == want for leaves in found.values())


# ---- what must be seen


def sharded_along_the_other_dim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(linear, "COLUMN", 1)


def row_sharded_along_the_other_dim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(linear, "ROW", 0)


def not_reduced(patch: pytest.MonkeyPatch) -> None:
    right = ReferenceOps.apply

    def apply(self: ReferenceOps, op: Op[Any]) -> Any:
        return right(self, replace(op, group=None) if isinstance(op, Linear) else op)

    patch.setattr(ReferenceOps, "apply", apply)


def reduced_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("karat.ops.reference.tree_sum", lambda parts: 2 * tree_sum(parts))


def squares_of_the_ranks_own_heads(patch: pytest.MonkeyPatch) -> None:
    right = ReferenceOps.apply

    def apply(self: ReferenceOps, op: Op[Any]) -> Any:
        return right(self, replace(op, group=None) if isinstance(op, SquareSums) else op)

    patch.setattr(ReferenceOps, "apply", apply)


def a_kv_head_counted_twice(patch: pytest.MonkeyPatch) -> None:
    right = shards.own_kv_leaves
    patch.setattr("karat.layers.norm.own_kv_leaves", lambda *args: (0, *right(*args)[1:]))


def norm_weights_of_the_first_heads(patch: pytest.MonkeyPatch) -> None:
    right = shards.own_heads
    patch.setattr("karat.layers.norm.own_heads", lambda *args: (0, right(*args)[1] - right(*args)[0]))


def bias_on_every_rank(patch: pytest.MonkeyPatch) -> None:
    def call(self: RowParallelLinear, ops: Ops, x: Tensor) -> Tensor:
        part = ops.linear(x, self.weight, self.bias, name=self.name)
        return part if self._group is None else tree_sum(self._group.all_gather(part))

    patch.setattr(RowParallelLinear, "__call__", call)


def kv_heads_shared_out_like_query_heads(patch: pytest.MonkeyPatch) -> None:
    def wrong(num_heads: int, num_kv_heads: int, unit: int, group: Group) -> tuple[int, int]:
        return group.rank % num_kv_heads, group.rank % num_kv_heads + 1

    patch.setattr(merged, "own_kv_heads", wrong)


def qkv_cut_a_head_too_late(patch: pytest.MonkeyPatch) -> None:
    right = shards.own_heads
    patch.setattr(merged, "own_heads", lambda *args: tuple(min(head + 1, 14) for head in right(*args)))


def qkv_heads_dealt_in_turn(patch: pytest.MonkeyPatch) -> None:
    right = merged.ColumnParallelLinear

    def dealt(*args: Any, pieces: Any, **given: Any) -> ColumnParallelLinear:
        turned = pieces and tuple((at, at + 10) for start, stop in pieces for at in reversed(range(start, stop, 10)))
        return right(*args, pieces=turned if args[0].name.endswith("k_proj") else pieces, **given)

    patch.setattr(merged, "ColumnParallelLinear", dealt)


def groups_counted_from_a_ranks_first_head(patch: pytest.MonkeyPatch) -> None:
    right = shards.own_groups
    patch.setattr("karat.layers.attention.own_groups", lambda *args: replace(right(*args), first=0))


def groups_of_the_ranks_own_heads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("karat.layers.attention.own_groups", lambda *args: None)


def gate_and_up_cut_elsewhere(patch: pytest.MonkeyPatch) -> None:
    right = shards.tree_ends
    patch.setattr(merged, "tree_ends", lambda *args: (*(end + 1 for end in right(*args)[:-1]), 40))


def vocabulary_cut_elsewhere(patch: pytest.MonkeyPatch) -> None:
    right = shards.part
    patch.setattr(vocabulary, "part", lambda ends, group: tuple(min(e + 1, 61) for e in right(ends, group)))


@pytest.mark.parametrize(
    ("mistake", "seen_by"),
    [
        (sharded_along_the_other_dim, column),
        (row_sharded_along_the_other_dim, row),
        (not_reduced, row),
        (reduced_twice, row),
        (bias_on_every_rank, row),
        (kv_heads_shared_out_like_query_heads, qkv),
        (qkv_cut_a_head_too_late, qkv),
        (qkv_heads_dealt_in_turn, partial(qkv, kv_heads=14)),
        (groups_counted_from_a_ranks_first_head, partial(attention, heads=15, kv_heads=3)),
        (groups_of_the_ranks_own_heads, partial(attention, heads=15, kv_heads=3)),
        (squares_of_the_ranks_own_heads, partial(attention, all_heads=True)),
        (a_kv_head_counted_twice, partial(attention, heads=15, kv_heads=3, all_heads=True)),
        (norm_weights_of_the_first_heads, partial(attention, all_heads=True)),
        (gate_and_up_cut_elsewhere, mlp),
        (vocabulary_cut_elsewhere, ends_of_vocabulary),
    ],
)
def test_mistakes_of_sharding_are_seen(
    mistake: Callable[[pytest.MonkeyPatch], None], seen_by: Callable[[int], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen_by(4) < 1e-13
    mistake(monkeypatch)
    try:
        difference = seen_by(4)
    except (ExecutorError, AssertionError, ValueError, IndexError):  # refused by a shape: seen as well
        return
    assert difference > 1e-3
