"""Every op on every executor against torch in float64, over random shapes.

Tolerance: an output that is a sum of n products may be off by (n + 8) roundings of the executor's dtype, each relative
to the sum of the products' magnitudes; the other ops by 8 roundings of their result. Softmax and rotation add their
own few. The bound is the worst case, so it holds for any order of summation.

Covers: karat.ops.executor, karat.ops.reference, karat.ops.registry.
"""

import math
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from karat.config import RopeConfig
from karat.errors import ExecutorError
from karat.ops.api import Clamp, Groups, HeadGroups, Routing
from karat.ops.executor import CacheSpec, Executor
from karat.ops.leaves import leaf_ends
from karat.ops.rope_table import cos_sin_table
from tests.support.conformance import (
    F,
    batch_of,
    check,
    draw,
    every_executor,
    exact,
    load,
    seeds,
    sizes,
    torch,
    weights,
)


@every_executor
@given(rows=sizes, outs=sizes, ins=sizes, biased=st.booleans(), seed=seeds)
@example(rows=1, outs=3001, ins=2049, biased=True, seed=1)
@example(rows=2051, outs=70, ins=67, biased=False, seed=2)
@example(rows=70, outs=67, ins=4099, biased=True, seed=3)
def test_linear(ops: Executor, rows: int, outs: int, ins: int, biased: bool, seed: int) -> None:
    """Row-parallel or not, which changes the order of the sum."""
    (x,) = draw(seed, (rows, ins), dtype=ops.dtype)
    w, b = weights(seed + 1, (outs, ins), (outs,))
    leaves = None if seed % 2 else leaf_ends(ins, math.gcd(ins, 1 + seed % 5))
    got = ops.linear(x, load(ops, w), load(ops, b) if biased else None, leaves=leaves, name="op")
    want = F.linear(exact(x), exact(w), exact(b) if biased else None)
    check(ops, got, want, (ins + 8) * (np.abs(x) @ np.abs(w).T + np.abs(b)))


@every_executor
@given(rows=sizes, n=sizes, scale=st.sampled_from([1e-3, 1.0, 1e3]), seed=seeds)
@example(rows=2051, n=70, scale=1.0, seed=1)
@example(rows=3, n=4099, scale=1.0, seed=2)
def test_rms_norm(ops: Executor, rows: int, n: int, scale: float, seed: int) -> None:
    (x,), (w,) = draw(seed, (rows, n), dtype=ops.dtype), weights(seed + 1, (n,))
    x = x * np.dtype(ops.dtype).type(scale)
    want = F.rms_norm(exact(x), (n,), exact(w), eps=1e-5)
    check(ops, ops.rms_norm(x, load(ops, w), 1e-5, name="op"), want, (n + 8) * np.abs(want.numpy()))


@every_executor
@given(rows=sizes, heads=st.integers(1, 12), per_kv=st.integers(1, 4), dim=st.integers(1, 40), seed=seeds)
@example(rows=2051, heads=3, per_kv=2, dim=7, seed=1)
@example(rows=3, heads=12, per_kv=1, dim=130, seed=2)
def test_norms_over_all_heads(ops: Executor, rows: int, heads: int, per_kv: int, dim: int, seed: int) -> None:
    """Of q and of k. What is a part of a longer row has the sum of another rank's head taken off it."""
    q, k = draw(seed, (rows, heads * per_kv, dim), (rows, heads, dim), dtype=ops.dtype)
    weights_of = weights(seed + 1, (heads * per_kv * dim,), (heads * dim,))
    leaves = {"q_leaves": leaf_ends(q[0].size, dim), "k_leaves": leaf_ends(k[0].size, dim)}
    squares = ops.square_sums(q, k, **leaves, name="op")
    for part, (x, w) in enumerate(zip((q, k), weights_of, strict=True)):
        flat = exact(x).reshape(rows, -1)
        want = F.rms_norm(flat, flat.shape[1:], exact(w), eps=1e-5).reshape(x.shape)
        got = ops.part_norm(x, squares, load(ops, w), 1e-5, part=part, count=len(w), name="op")
        check(ops, got, want, (len(w) + 8) * np.abs(want.numpy()))
    first = int(leaves["k_leaves"][0])
    own = ops.square_sums(q, k, **leaves, k_first=first, name="op")
    want = (exact(k).reshape(rows, -1)[:, first:] ** 2).sum(1)
    check(ops, ops.read(own)[:, 1], want, (k[0].size + 8) * want.numpy())
    np.testing.assert_array_equal(ops.read(own)[:, 0], ops.read(squares)[:, 0])


@every_executor
@given(
    tokens=sizes,
    heads=st.integers(1, 4),
    groups=st.integers(1, 3),
    half=st.integers(1, 9),
    biased=st.booleans(),
    seed=seeds,
)
@example(tokens=2051, heads=2, groups=2, half=9, biased=True, seed=1)
def test_qkv(ops: Executor, tokens: int, heads: int, groups: int, half: int, biased: bool, seed: int) -> None:
    """Three plain linears, bit for bit."""
    d = 2 * half
    (x,) = draw(seed, (tokens, 11), dtype=ops.dtype)
    sizes_out = (heads * groups * d, heads * d, heads * d)
    q, k, v = (load(ops, w) for w in weights(seed + 1, *((n, 11) for n in sizes_out)))
    bias_q, bias_k, bias_v = (load(ops, b) for b in weights(seed + 2, *((n,) for n in sizes_out)))
    biases = (bias_q, bias_k, bias_v) if biased else None
    results = ops.qkv(x, (q, k, v), biases, head_dim=d, names=("q", "k", "v"))
    for got, w, b in zip(results, (q, k, v), biases or (None,) * 3, strict=True):
        alone = ops.read(ops.linear(x, w, b, name="op")).reshape(tokens, -1, d)
        np.testing.assert_array_equal(ops.read(got), alone)


@every_executor
@given(tokens=sizes, ins=sizes, outs=sizes, biased=st.booleans(), seed=seeds)
@example(tokens=2051, ins=67, outs=70, biased=True, seed=1)
def test_gate_up(ops: Executor, tokens: int, ins: int, outs: int, biased: bool, seed: int) -> None:
    """Two plain linears, bit for bit."""
    (x,) = draw(seed, (tokens, ins), dtype=ops.dtype)
    gate, up, b_gate, b_up = (load(ops, w) for w in weights(seed, (outs, ins), (outs, ins), (outs,), (outs,)))
    results = ops.gate_up(x, (gate, up), (b_gate, b_up) if biased else None, names=("gate", "up"))
    for got, w, b in zip(results, (gate, up), (b_gate, b_up), strict=True):
        np.testing.assert_array_equal(ops.read(got), ops.read(ops.linear(x, w, b if biased else None, name="op")))


@every_executor
@given(rows=sizes, n=sizes, scale=st.sampled_from([0.1, 1.0, 30.0, 3000.0]), seed=seeds)
@example(rows=2051, n=70, scale=1.0, seed=1)
def test_silu_mul(ops: Executor, rows: int, n: int, scale: float, seed: int) -> None:
    gate, up = draw(seed, (rows, n), (rows, n), dtype=ops.dtype)
    gate = gate * np.dtype(ops.dtype).type(scale)
    want = F.silu(exact(gate)) * exact(up)
    underflow = 1e6 * np.finfo(ops.dtype).tiny  # below it, torch returns zero
    bound = 16 * np.abs(want.numpy()) + underflow / np.finfo(ops.dtype).eps
    check(ops, ops.silu_mul(gate, up, name="op"), want, bound)


@every_executor
@given(rows=sizes, n=sizes, scale=st.sampled_from([0.1, 1.0, 30.0, 3000.0]), seed=seeds)
@example(rows=2051, n=70, scale=1.0, seed=1)
def test_gelu_mul(ops: Executor, rows: int, n: int, scale: float, seed: int) -> None:
    """Where gate is far below 0, gelu is the small difference of 1 and a tanh: the bound is relative to gate."""
    gate, up = draw(seed, (rows, n), (rows, n), dtype=ops.dtype)
    gate = gate * np.dtype(ops.dtype).type(scale)
    want = F.gelu(exact(gate), approximate="tanh") * exact(up)
    check(ops, ops.gelu_mul(gate, up, name="op"), want, 8 * np.abs(gate * up) + np.finfo(ops.dtype).tiny)


@every_executor
@given(rows=sizes, n=sizes, factor=st.floats(-100, 100, width=32), seed=seeds)
@example(rows=2051, n=70, factor=0.7, seed=1)
def test_scale_by(ops: Executor, rows: int, n: int, factor: float, seed: int) -> None:
    """One rounding. A weight of another size is refused by name."""
    (x,) = draw(seed, (rows, n), dtype=ops.dtype)
    want = exact(x) * float(np.float32(factor))
    bound = np.abs(want.numpy()) + np.finfo(ops.dtype).tiny  # half of the smallest number, where results are below it
    check(ops, ops.scale_by(x, load(ops, np.array([factor], np.float32)), name="op"), want, bound)
    with pytest.raises(ExecutorError, match="a factor of 2 numbers"):
        ops.scale_by(x, load(ops, np.ones(2, np.float32)), name="op")


@every_executor
@given(rows=sizes, n=sizes, scale=st.sampled_from([0.1, 1.0, 30.0, 3000.0]), cap=st.floats(0.01, 100), seed=seeds)
@example(rows=2051, n=70, scale=30.0, cap=50.0, seed=1)
def test_soft_cap(ops: Executor, rows: int, n: int, scale: float, cap: float, seed: int) -> None:
    (x,) = draw(seed, (rows, n), dtype=ops.dtype)
    x = x * np.dtype(ops.dtype).type(scale)
    want = cap * torch.tanh(exact(x) / cap)
    check(ops, ops.soft_cap(x, cap, name="op"), want, 8 * np.abs(want.numpy()) + np.finfo(ops.dtype).tiny)


@every_executor
@given(
    rows=sizes,
    gates=sizes,
    columns=st.integers(1, 20),
    scale=st.sampled_from([0.1, 1.0, 30.0, 3000.0]),
    seed=seeds,
)
@example(rows=2051, gates=70, columns=1, scale=1.0, seed=1)
@example(rows=300, gates=1, columns=2049, scale=1.0, seed=2)
def test_sigmoid_mul(ops: Executor, rows: int, gates: int, columns: int, scale: float, seed: int) -> None:
    """A gate of elements, of heads or of rows; x in one piece or by head."""
    x, gate = draw(seed, (rows, gates, columns), (rows, gates), dtype=ops.dtype)
    gate = gate * np.dtype(ops.dtype).type(scale)
    want = exact(x) * torch.sigmoid(exact(gate))[..., None]
    underflow = 1e6 * np.finfo(ops.dtype).tiny
    bound = 16 * np.abs(want.numpy()) + underflow / np.finfo(ops.dtype).eps
    got = ops.sigmoid_mul(x, gate, name="op")
    check(ops, got, want, bound)
    flat = ops.sigmoid_mul(x.reshape(rows, -1), gate, name="op")
    np.testing.assert_array_equal(ops.read(flat), ops.read(got).reshape(rows, -1))
    by_element = ops.sigmoid_mul(x.reshape(rows, -1), np.repeat(gate, columns, axis=1), name="op")
    np.testing.assert_array_equal(ops.read(by_element), ops.read(flat))


@every_executor
@given(rows=sizes, n=sizes, seed=seeds)
@example(rows=2051, n=70, seed=1)
def test_add(ops: Executor, rows: int, n: int, seed: int) -> None:
    x, y = draw(seed, (rows, n), (rows, n), dtype=ops.dtype)
    want = exact(x) + exact(y)
    check(ops, ops.add(x, y, name="op"), want, np.abs(want.numpy()))


@every_executor
@given(rows=sizes, heads=st.integers(1, 3), n=sizes, factor=st.floats(-1e3, 1e3), seed=seeds)
@example(rows=2051, heads=1, n=70, factor=1 / 3, seed=1)
def test_scale(ops: Executor, rows: int, heads: int, n: int, factor: float, seed: int) -> None:
    (x,) = draw(seed, (rows, heads, n), dtype=ops.dtype)
    want = exact(x) * factor
    tiny = np.finfo(ops.dtype).tiny * (2 + np.abs(x))  # below it a rounding is absolute: the factor's, the product's
    bound = 3 * np.abs(want.numpy()) + tiny
    check(ops, ops.scale(x, factor, name="op"), want, bound)


@every_executor
@given(rows=sizes, experts=st.integers(1, 70), share=st.floats(0, 1), renormalised=st.booleans(), seed=seeds)
@example(rows=1, experts=128, share=0.06, renormalised=True, seed=1)
def test_route(ops: Executor, rows: int, experts: int, share: float, renormalised: bool, seed: int) -> None:
    """Logits are quarters, so many are equal: of these the smaller ids come first."""
    logits = (draw(seed, (rows, experts), dtype=ops.dtype)[0] * 4).round() / 4
    chosen = 1 + int(share * (experts - 1))
    ids, weights = ops.route(logits, Routing(chosen, renormalised=renormalised), names=("op.ids", "op.weights"))
    want_ids = torch.sort(exact(logits), dim=-1, descending=True, stable=True).indices[:, :chosen]
    np.testing.assert_array_equal(ops.read(ids), want_ids.numpy())
    of = exact(logits).gather(1, want_ids) if renormalised else exact(logits)
    want = torch.exp(exact(logits).gather(1, want_ids) - torch.logsumexp(of, dim=-1, keepdim=True))
    check(ops, weights, want, (experts + 12) * want.numpy() + np.finfo(ops.dtype).tiny)


@every_executor
@given(
    rows=sizes,
    size=st.integers(1, 9),
    groups=st.integers(1, 8),
    score=st.sampled_from(["softmax", "sigmoid"]),
    renormalised=st.booleans(),
    biased=st.booleans(),
    outside=st.sampled_from([-math.inf, 0.0]),
    divisor=st.sampled_from([(0.0, 0.0), (0.25, 0.0), (0.0, 0.75)]),
    scales=st.booleans(),
    seed=seeds,
)
def test_other_routings(
    ops: Executor,
    rows: int,
    size: int,
    groups: int,
    score: Literal["softmax", "sigmoid"],
    renormalised: bool,
    biased: bool,
    outside: float,
    divisor: tuple[float, float],
    scales: bool,
    seed: int,
) -> None:
    """Sigmoids, biases, groups, divisors and scales. Rows whose choice rounding could turn are left out (< 1e-5)."""
    rng = np.random.default_rng(seed)
    experts, of_groups = size * groups, int(rng.integers(1, groups + 1))
    chosen = int(rng.integers(1, size * of_groups + 1))
    (logits,) = draw(seed, (rows, experts), dtype=ops.dtype)
    bias, factors = ((rng.standard_normal(experts) / 4).astype(np.float32) for _ in range(2))
    routing = Routing(
        chosen,
        renormalised,
        score,
        bias=load(ops, bias) if biased else None,
        groups=Groups(groups, of_groups, outside) if groups > 1 else None,
        plus=divisor[0],
        least=divisor[1],
        scale=2.5,
        scales=load(ops, factors) if scales else None,
    )
    ids, weights = ops.route(logits, routing, names=("op.ids", "op.weights"))
    scores = torch.softmax(exact(logits), -1) if score == "softmax" else torch.sigmoid(exact(logits))
    ranked = scores + exact(bias) if biased else scores
    clear = torch.ones(rows, dtype=torch.bool)
    if groups > 1:
        sums = ranked.reshape(rows, groups, size).topk(min(2, size)).values.sum(-1)
        clear &= _gap_after(sums, of_groups) > 1e-5
        left_out = torch.ones(rows, groups).scatter(1, sums.topk(of_groups).indices, 0) > 0
        ranked = ranked.masked_fill(left_out.repeat_interleave(size, dim=1), outside)
    sorted_, order = torch.sort(ranked, dim=-1, descending=True, stable=True)
    close = sorted_[:, :-1] - sorted_[:, 1:] < 1e-5  # equals that are outside are in the order of their ids
    clear &= ~(close[:, :chosen] & (sorted_[:, :-1] != sorted_[:, 1:])[:, :chosen]).any(-1)
    want_ids = order[:, :chosen]
    kept = clear.numpy()
    np.testing.assert_array_equal(ops.read(ids)[kept], want_ids.numpy()[kept])
    want = scores.gather(1, want_ids)
    if renormalised:
        want = want / (want.sum(-1, keepdim=True) + divisor[0]).clamp(min=divisor[1])
    want = want * 2.5 * (exact(factors)[want_ids] if scales else 1)
    bound = (experts + chosen + 20) * np.abs(want.numpy()) + np.finfo(ops.dtype).tiny
    check(ops, np.asarray(ops.read(weights))[kept], want[clear], bound[kept])


@every_executor
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN and infinity
def test_routes_of_what_is_no_number(ops: Executor) -> None:
    """The largest first, of equal ones the smaller id, NaN last: by logit, and by score with a bias."""
    logits = np.array([[np.nan, 1, np.inf, 1], [-np.inf, -np.inf, 0, np.nan], [2, 2, 2, 2]], ops.dtype)
    none = load(ops, np.zeros(4, np.float32))
    for routing in (Routing(4, True), Routing(4, False), Routing(4, True, "sigmoid", bias=none)):
        ids, _ = ops.route(logits, routing, names=("op.ids", "op.weights"))
        np.testing.assert_array_equal(ops.read(ids), [[2, 1, 3, 0], [2, 0, 1, 3], [0, 1, 2, 3]])


def _gap_after(sums: torch.Tensor, count: int) -> torch.Tensor:
    """By how much the first `count` of a row are before the next; infinity if there is none."""
    ordered = torch.sort(sums, dim=-1, descending=True).values
    return ordered[:, count - 1] - ordered[:, count] if count < sums.shape[1] else torch.full((len(sums),), math.inf)


@every_executor
@given(
    rows=st.integers(1, 40),
    hidden=sizes,
    inner=sizes,
    experts=st.integers(1, 20),
    chosen=st.integers(1, 4),
    seed=seeds,
    by_gelu=st.booleans(),
    by_columns=st.booleans(),
)
@example(rows=1, hidden=64, inner=96, experts=16, chosen=4, seed=1, by_gelu=False, by_columns=False)
@example(rows=1, hidden=80, inner=96, experts=16, chosen=4, seed=1, by_gelu=False, by_columns=True)
@example(rows=300, hidden=40, inner=33, experts=9, chosen=3, seed=2, by_gelu=True, by_columns=False)
@example(rows=300, hidden=40, inner=33, experts=9, chosen=3, seed=2, by_gelu=True, by_columns=True)
def test_experts(
    ops: Executor,
    rows: int,
    hidden: int,
    inner: int,
    experts: int,
    chosen: int,
    seed: int,
    by_gelu: bool,
    by_columns: bool,
) -> None:
    chosen = min(chosen, experts)
    x, logits = draw(seed, (rows, hidden), (rows, experts), dtype=ops.dtype)
    gates, ups, downs = weights(seed + 1, (experts, inner, hidden), (experts, inner, hidden), (experts, hidden, inner))
    ids, shares = ops.route(logits, Routing(chosen, renormalised=True), names=("op.ids", "op.weights"))
    loaded = (tuple(load(ops, each) for each in of_all) for of_all in (gates, ups, downs))
    leaves = leaf_ends(inner if by_columns else experts, 1)
    got = ops.experts(x, ids, shares, *loaded, leaves=leaves, by_columns=by_columns, by_gelu=by_gelu, name="op")
    want, bound = torch.zeros(rows, hidden, dtype=torch.float64), np.zeros((rows, hidden))
    for row, (of_row, by) in enumerate(zip(ops.read(ids), ops.read(shares), strict=True)):
        for expert, share in zip(of_row, by, strict=True):
            gate, up = (F.linear(exact(x[row]), exact(w[expert])) for w in (gates, ups))
            inside = F.gelu(gate, approximate="tanh") if by_gelu else F.silu(gate)
            want[row] += F.linear(inside * up, exact(downs[expert])) * float(share)
            largest = np.abs(gates[expert]) @ np.abs(x[row]), np.abs(ups[expert]) @ np.abs(x[row])
            bound[row] += abs(float(share)) * (np.abs(downs[expert]) @ (1.2 * largest[0] * largest[1]))
    check(ops, got, want, (3 * hidden + inner + chosen + 40) * bound)


@every_executor
@given(
    rows=st.integers(1, 12), hidden=sizes, inner=sizes, experts=st.integers(1, 9), seed=seeds, by_columns=st.booleans()
)
def test_experts_with_biases_and_a_clamp(
    ops: Executor, rows: int, hidden: int, inner: int, experts: int, seed: int, by_columns: bool
) -> None:
    """Limits that bind for most products; NaN stays NaN. |d/dx x·sigmoid(alpha·x)| is at most 1.1, whatever alpha."""
    chosen, clamp = min(2, experts), Clamp(limit=2.5, alpha=1.702)
    x, logits = draw(seed, (rows, hidden), (rows, experts), dtype=ops.dtype)
    sizes_of = {"gates": (inner, hidden), "ups": (inner, hidden), "downs": (hidden, inner)}
    matrices = weights(seed + 1, *((experts, *size) for size in sizes_of.values()))
    biases = weights(seed + 2, *((experts, size[0]) for size in sizes_of.values()))
    ids, shares = ops.route(logits, Routing(chosen, renormalised=True), names=("op.ids", "op.weights"))
    held, added = (tuple(tuple(load(ops, each) for each in of) for of in both) for both in (matrices, biases))

    def computed(x: Any) -> Any:
        how = {"leaves": leaf_ends(inner if by_columns else experts, 1), "by_columns": by_columns}
        return ops.experts(x, ids, shares, *held, **how, biases=added, clamp=clamp, name="op")

    want, bound = torch.zeros(rows, hidden, dtype=torch.float64), np.zeros((rows, hidden))
    for row, (of_row, by) in enumerate(zip(ops.read(ids), ops.read(shares), strict=True)):
        for expert, share in zip(of_row, by, strict=True):
            weight, bias = ([exact(each[expert]) for each in of] for of in (matrices, biases))
            gate, up = (F.linear(exact(x[row]), weight[i], bias[i]) for i in range(2))
            gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
            inside = gate * torch.sigmoid(clamp.alpha * gate) * (up + 1)
            want[row] += F.linear(inside, weight[2], bias[2]) * float(share)
            largest = [np.abs(matrices[i][expert]) @ np.abs(x[row]) + np.abs(biases[i][expert]) for i in range(2)]
            size = np.abs(matrices[2][expert]) @ (1.2 * largest[0] * (largest[1] + 1)) + np.abs(biases[2][expert])
            bound[row] += abs(float(share)) * size
    check(ops, computed(x), want, (3 * hidden + inner + chosen + 40) * bound)
    x[0, 0] = np.nan
    got = ops.read(computed(x))
    assert np.isnan(got[0]).all() and np.isfinite(got[1:]).all()


@every_executor
@given(lens=st.lists(st.integers(1, 30), min_size=1, max_size=3), hidden=sizes, seed=seeds)
@example(lens=[2051, 7], hidden=70, seed=1)
def test_embedding_and_rows(ops: Executor, lens: list[int], hidden: int, seed: int) -> None:
    (table,) = weights(seed, (50, hidden))
    batch = batch_of(lens, lens, seed=seed)
    step = ops.begin(batch)
    x = ops.embedding(step, load(ops, table), name="op")
    np.testing.assert_array_equal(ops.read(x), F.embedding(torch.from_numpy(batch.token_ids), exact(table)).numpy())
    rows = ops.read(ops.select_rows(x, step, name="op"))
    np.testing.assert_array_equal(rows, table[batch.token_ids[batch.logit_rows]])


@every_executor
@given(length=st.integers(1, 40), heads=st.integers(1, 5), half=st.integers(1, 20), seed=seeds)
def test_rope(ops: Executor, length: int, heads: int, half: int, seed: int) -> None:
    """As multiplication of complex numbers, x[i] + j·x[i + head_dim/2]."""
    new = 1 + seed % length
    step = ops.begin(batch_of([length], [new]))
    rope = RopeConfig(
        theta=500.0, rope_type="yarn", factor=2.0, original_max_position_embeddings=32, attention_factor=1.3
    )
    table: Any = ops.rope_table(rope, head_dim=2 * half, num_positions=64)
    (x,) = draw(seed, (new, heads, 2 * half), dtype=ops.dtype)
    angles = cos_sin_table(rope, head_dim=2 * half, num_positions=64, dtype=np.dtype(ops.dtype))
    turn = torch.complex(exact(angles.cos), exact(angles.sin))[length - new : length, None]
    turned = torch.complex(exact(x[..., :half]), exact(x[..., half:])) * turn
    want = torch.cat((turned.real, turned.imag), dim=-1)
    size = 1.3 * (np.abs(x[..., :half]) + np.abs(x[..., half:]))
    check(ops, ops.rope(x, table, step, name="op"), want, 4 * np.concatenate((size, size), axis=-1))


@every_executor
def test_shapes_outside_the_contract_are_refused(ops: Executor) -> None:
    x = np.ones((2, 3), ops.dtype)
    with pytest.raises(ExecutorError, match=r"some\.op"):
        ops.linear(x, load(ops, np.ones((5, 4), np.float32)), name="some.op")
    with pytest.raises(ExecutorError, match=r"some\.op"):
        ops.rms_norm(x, load(ops, np.ones(2, np.float32)), 1e-6, name="some.op")
    with pytest.raises(ExecutorError, match=r"some\.op"):
        ops.add(x, np.ones((2, 4), ops.dtype), name="some.op")
    for ends, first in (((1, 2), 0), ((1, 3), 2)):
        with pytest.raises(ExecutorError, match=r"some\.op: leaves that end at"):
            ops.square_sums(x, x, q_leaves=(1, 3), k_leaves=ends, k_first=first, name="some.op")
    squares = ops.square_sums(x, x, q_leaves=(3,), k_leaves=(3,), name="op")
    for size, part, count in ((2, 0, 6), (3, 2, 6), (3, 1, 2)):
        with pytest.raises(ExecutorError, match=r"some\.op: a weight of"):
            ops.part_norm(
                x, squares, load(ops, np.ones(size, np.float32)), 1e-6, part=part, count=count, name="some.op"
            )
    for factor in (math.inf, math.nan):
        with pytest.raises(ExecutorError, match=r"some\.op: factor=(inf|nan)"):
            ops.scale(x, factor, name="some.op")
    ids, shares = ops.route(x, Routing(1, renormalised=True), names=("op.ids", "op.weights"))
    wide, high = (tuple(load(ops, each) for each in np.ones((2, *shape), np.float32)) for shape in ((5, 3), (3, 4)))
    with pytest.raises(ExecutorError, match=r"some\.op"):
        ops.experts(x, ids, shares, wide, wide, high, leaves=(1, 2), name="some.op")
    for chosen in (0, 4):
        with pytest.raises(ExecutorError, match=rf"op\.ids: {chosen} chosen of 3 experts"):
            ops.route(x, Routing(chosen, renormalised=True), names=("op.ids", "op.weights"))
    for groups, fault in (
        (Groups(2, 1), "3 experts in 2 groups"),
        (Groups(3, 4), "4 chosen of 3 groups"),
        (Groups(3, 1), "2 chosen of 1 experts"),
    ):
        with pytest.raises(ExecutorError, match=rf"op\.ids: {fault}"):
            ops.route(x, Routing(2, renormalised=True, groups=groups), names=("op.ids", "op.weights"))
    with pytest.raises(ExecutorError, match=r"op\.ids: other biases or scales than one for 3 experts"):
        ops.route(x, Routing(1, False, bias=load(ops, np.ones(4, np.float32))), names=("op.ids", "op.weights"))
    for gates in (0, 2, 4, 6):
        with pytest.raises(ExecutorError, match=r"some\.op: a gate .* for"):
            ops.sigmoid_mul(x, np.ones((2, gates), ops.dtype), name="some.op")
    ((cache,),) = ops.new_cache(
        [CacheSpec(layers=(0,), num_blocks=1, block_size=4, num_kv_heads=2, k_dim=2, v_dim=2, dtype="float32")]
    )
    q, step = np.ones((1, 4, 2), ops.dtype), ops.begin(batch_of([1], [1]))
    for groups in (HeadGroups(4), HeadGroups(2, 1), HeadGroups(3, 3), HeadGroups(2, -1), HeadGroups(0)):
        with pytest.raises(ExecutorError, match=r"some\.op"):
            ops.paged_attention(q, cache, step, scale=1.0, window=None, name="some.op", groups=groups)
    with pytest.raises(ExecutorError, match=r"some\.op"):
        ops.paged_attention(q[:, :3], cache, step, scale=1.0, window=None, name="some.op")
