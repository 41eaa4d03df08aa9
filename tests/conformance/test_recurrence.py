"""The ops of recurrent layers on every executor against torch, and against transformers' own recurrence, in float64.

Tolerances are those of test_ops: 8 roundings of a result, and n more for a sum of n products, of the sum of their
magnitudes. A state is a sum over all tokens before; its bound is one of the whole text.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from karat.errors import ExecutorError
from karat.ops.executor import Executor, StateSpec
from karat.ops.tap import Tap
from tests.support.conformance import Array, F, check, draw, every_executor, exact, load, seeds, sizes, torch, weights
from tests.support.float64 import Widen
from tests.support.state_steps import random_cuts, steps_of

modeling = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5", reason="the independent recurrence")


def in_steps(
    ops: Executor, lens: list[int], cuts: list[list[int]], compute: Any, shapes: tuple[tuple[int, ...], ...]
) -> list[Array]:
    """The rows of each sequence, of compute(step, state, rows) in each step; rows are (sequence, slice of tokens)."""
    ((state,),) = (ops.new_states(StateSpec(layers=(0,), num_slots=2 * len(lens), shapes=shapes)),)
    parts: list[list[Array]] = [[] for _ in lens]
    for batch, spans in steps_of(lens, cuts):
        rows = np.array(ops.read(compute(ops.begin(batch), state, spans)))
        starts = batch.query_starts
        for number, (seq, _) in enumerate(spans):
            parts[seq].append(rows[starts[number] : starts[number + 1]])
    return [np.concatenate(part) for part in parts]


def rows_of(values: list[Array], spans: list[tuple[int, slice]]) -> Array:
    return np.concatenate([values[seq][span] for seq, span in spans])


@every_executor
@given(
    lens=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    channels=sizes,
    taps=st.integers(2, 7),
    silu=st.booleans(),
    biased=st.booleans(),
    seed=seeds,
)
@example(lens=[300], channels=129, taps=4, silu=True, biased=False, seed=1)
def test_causal_conv(
    ops: Executor, lens: list[int], channels: int, taps: int, silu: bool, biased: bool, seed: int
) -> None:
    """Against torch's convolution of each text; cut into steps in two ways, which changes no bit of the native ones."""
    xs = [draw(seed + 2 + i, (n, channels), dtype=ops.dtype)[0] for i, n in enumerate(lens)]
    w, b = weights(seed, (channels, taps), (channels,))
    weight, bias = load(ops, w.reshape(-1)), load(ops, b) if biased else None

    def compute(step: Any, state: Any, spans: Any) -> Any:
        return ops.causal_conv(rows_of(xs, spans), weight, state, step, bias=bias, silu=silu, name="op")

    shapes = ((taps - 1, channels),)
    whole = in_steps(ops, lens, [[n] for n in lens], compute, shapes)
    cut = in_steps(ops, lens, random_cuts(seed, lens), compute, shapes)
    for x, got, again in zip(xs, whole, cut, strict=True):
        padded = F.pad(exact(x).T[None], (taps - 1, 0))
        want = F.conv1d(padded, exact(w)[:, None], exact(b) if biased else None, groups=channels)[0].T
        size = F.conv1d(padded.abs(), exact(np.abs(w))[:, None], exact(np.abs(b)), groups=channels)[0].T.numpy()
        check(ops, got, F.silu(want) if silu else want, (taps + 16) * size)
        if ops.executor == "native":
            np.testing.assert_array_equal(again, got)
        check(ops, again, F.silu(want) if silu else want, (taps + 16) * size)


@every_executor
@given(
    lens=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    key_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    k_dim=st.sampled_from([1, 8, 16, 33]),
    v_dim=st.sampled_from([1, 8, 16, 33, 70, 130]),
    tiled=st.booleans(),
    seed=seeds,
)
@example(lens=[200, 1], key_heads=2, groups=2, k_dim=128, v_dim=128, tiled=False, seed=1)
def test_delta_rule(
    ops: Executor, lens: list[int], key_heads: int, groups: int, k_dim: int, v_dim: int, tiled: bool, seed: int
) -> None:
    """Against transformers' recurrence, token by token and in its chunks of 64."""
    heads = key_heads * groups
    of = tuple(head % key_heads if tiled else head // groups for head in range(heads))
    q, k, v, decay, beta = ([] for _ in range(5))
    for i, n in enumerate(lens):
        rng = np.random.default_rng(seed + i)
        for into, dim in ((q, k_dim), (k, k_dim)):
            x = rng.standard_normal((n, key_heads, dim))
            into.append((x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(ops.dtype))
        v.append(rng.standard_normal((n, heads, v_dim)).astype(ops.dtype))
        decay.append(np.exp(-rng.exponential(0.3, (n, heads))).astype(ops.dtype))
        beta.append(rng.random((n, heads)).astype(ops.dtype))

    def compute(step: Any, state: Any, spans: Any) -> Any:
        given = (rows_of(values, spans) for values in (q, k, v, decay, beta))
        return ops.delta_rule(*given, state, step, key_heads=of, name="op")

    shapes = ((1, 1), (heads, k_dim, v_dim))
    whole = in_steps(ops, lens, [[n] for n in lens], compute, shapes)
    cut = in_steps(ops, lens, random_cuts(seed, lens), compute, shapes)
    rounding = np.finfo(ops.dtype).eps / 2
    for i, (got, again) in enumerate(zip(whole, cut, strict=True)):
        given = [exact(x)[None] for x in (q[i][:, of], k[i][:, of], v[i], np.log(exact(decay[i]).numpy()), beta[i])]
        for theirs in (modeling.torch_recurrent_gated_delta_rule, modeling.torch_chunk_gated_delta_rule):
            with torch.no_grad(), Widen():
                want = theirs(*given, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False)[0]
            want = want[0].reshape(lens[i], -1).numpy() * k_dim**0.5  # theirs scales q
            bound = (k_dim + lens[i] + 64) * rounding * (1 + np.abs(want).max())
            assert np.abs(got - want).max() <= bound
            assert np.abs(again - want).max() <= bound
        if ops.executor == "native":
            np.testing.assert_array_equal(again, got)


@every_executor
@given(cut=st.integers(1, 8), v_dim=st.sampled_from([8, 33, 130]), seed=seeds)
@settings(max_examples=5)
def test_norms_of_states(ops: Executor, cut: int, v_dim: int, seed: int) -> None:
    """After each token, those of the state that transformers' recurrence ends with there; seen by a tap, whose results
    are those without one.
    """
    n, heads, k_dim = 9, 4, 12
    rng = np.random.default_rng(seed)
    q, k = (rng.standard_normal((n, 2, k_dim)).astype(ops.dtype) / 3 for _ in range(2))
    v = rng.standard_normal((n, heads, v_dim)).astype(ops.dtype)
    decay, beta = (rng.uniform(0.2, 1, (n, heads)).astype(ops.dtype) for _ in range(2))
    of = (0, 1, 0, 1)

    def run(under: Executor) -> Array:
        def compute(step: Any, state: Any, spans: Any) -> Any:
            given = (rows_of([values], spans) for values in (q, k, v, decay, beta))
            return under.delta_rule(*given, state, step, key_heads=of, name="layer.delta")

        return in_steps(under, [n], [[cut, n - cut]], compute, ((1, 1), (heads, k_dim, v_dim)))[0]

    tap = Tap(ops)
    np.testing.assert_array_equal(run(tap), run(ops))
    norms = np.concatenate(tap.records["layer.state_norm"])
    assert norms.shape == (n, heads)
    given = [exact(x)[None] for x in (q[:, of], k[:, of], v, np.log(exact(decay).numpy()), beta)]
    for end in range(1, n + 1):
        with torch.no_grad(), Widen():
            _, state = modeling.torch_recurrent_gated_delta_rule(
                *(each[:, :end] for each in given),
                initial_state=None,
                output_final_state=True,
                use_qk_l2norm_in_kernel=False,
            )
        want = np.linalg.norm(state[0].numpy().reshape(heads, -1), axis=1)
        rounding = np.finfo(ops.dtype).eps / 2
        assert np.abs(norms[end - 1] - want).max() <= (k_dim + n + 64) * rounding * (1 + want.max())


@every_executor
@given(rows=sizes, heads=sizes, scale=st.sampled_from([0.1, 1.0, 30.0]), of_log=st.booleans(), seed=seeds)
def test_decay(ops: Executor, rows: int, heads: int, scale: float, of_log: bool, seed: int) -> None:
    """The exponent has 16 roundings of its size, which the exponential makes relative errors of."""
    (a,), (bias, rate) = draw(seed, (rows, heads), dtype=ops.dtype), weights(seed + 1, (heads,), (heads,))
    a = a * np.dtype(ops.dtype).type(scale)
    rate = rate if of_log else -np.exp(rate)
    rates = -torch.exp(exact(rate)) if of_log else exact(rate)
    exponent = rates * F.softplus(exact(a) + exact(bias))
    want = torch.exp(exponent)
    tiny = np.finfo(ops.dtype).tiny / np.finfo(ops.dtype).eps * 4
    size = np.abs(exponent.numpy()) + np.abs(rates.numpy()) * (np.abs(a) + np.abs(bias))
    got = ops.decay(a, load(ops, bias), load(ops, rate), of_log, name="op")
    check(ops, got, want, (16 + 16 * size) * want.numpy() + tiny)


@every_executor
@given(rows=sizes, heads=st.integers(1, 4), n=sizes, factor=st.sampled_from([1.0, 0.3]), seed=seeds)
def test_l2_norm(ops: Executor, rows: int, heads: int, n: int, factor: float, seed: int) -> None:
    (x,) = draw(seed, (rows, heads, n), dtype=ops.dtype)
    want = exact(x) / (exact(x).square().sum(-1, keepdim=True) + 1e-6).sqrt() * factor
    check(ops, ops.l2_norm(x, 1e-6, factor, name="op"), want, (n + 8) * np.abs(want.numpy()))


@every_executor
@given(rows=sizes, n=sizes, seed=seeds)
def test_mul_and_sigmoid(ops: Executor, rows: int, n: int, seed: int) -> None:
    x, y = draw(seed, (rows, n), (rows, n), dtype=ops.dtype)
    check(ops, ops.mul(x, y, name="op"), exact(x) * exact(y), 2 * np.abs(x * y))
    want = torch.sigmoid(exact(20 * x))
    underflow = 1e6 * np.finfo(ops.dtype).tiny  # below it the native one is 0
    check(ops, ops.sigmoid(20 * x, name="op"), want, 16 * want.numpy() + underflow / np.finfo(ops.dtype).eps)


@every_executor
@given(rows=sizes, groups=st.integers(1, 4), sizes_of=st.lists(st.integers(1, 9), min_size=1, max_size=4), seed=seeds)
def test_split(ops: Executor, rows: int, groups: int, sizes_of: list[int], seed: int) -> None:
    """The parts are put together again by torch."""
    (x,) = draw(seed, (rows, groups * sum(sizes_of)), dtype=ops.dtype)
    shapes = tuple((groups, size) for size in sizes_of)
    names = tuple(map(str, sizes_of))
    parts = [exact(ops.read(part)) for part in ops.split(x, shapes, groups, names=names)]
    np.testing.assert_array_equal(torch.cat(parts, dim=-1).reshape(rows, -1).numpy(), x)


@every_executor
def test_several_linears_are_each_alone(ops: Executor) -> None:
    (x,) = draw(1, (5, 32), dtype=ops.dtype)
    both = [load(ops, w) for w in weights(2, (7, 32), (40, 32))]
    for got, weight in zip(ops.linears(x, tuple(both), None, names=("a", "b")), both, strict=True):
        np.testing.assert_array_equal(ops.read(got), ops.read(ops.linear(x, weight, name="op")))


@every_executor
def test_a_norm_by_one_more_than_its_weight(ops: Executor) -> None:
    (x,), (w,) = draw(1, (5, 32), dtype=ops.dtype), weights(2, (32,))
    want = F.rms_norm(exact(x), (32,), 1 + exact(w), eps=1e-5)
    check(ops, ops.rms_norm(x, load(ops, w), 1e-5, plus_one=True, name="op"), want, 40 * np.abs(want.numpy()) + 40)


@every_executor
def test_what_does_not_fit_is_refused(ops: Executor) -> None:
    (batch, _), *_ = steps_of([3], [[3]])
    (state,) = ops.new_states(StateSpec(layers=(4,), num_slots=2, shapes=((3, 8), (2, 4, 8))))
    (x, q, k, v, decay), (w,) = (
        draw(1, (3, 8), (3, 1, 4), (3, 1, 4), (3, 2, 8), (3, 2), dtype=ops.dtype),
        weights(2, (24,)),
    )
    step = ops.begin(batch)
    with pytest.raises(ExecutorError, match="a state"):
        ops.causal_conv(x, load(ops, w), state, step, name="op")
    with pytest.raises(ExecutorError, match="key head 1 of 1"):
        ops.delta_rule(q, k, v, decay, decay, state, step, key_heads=(0, 1), name="op")
    with pytest.raises(ExecutorError, match="a state"):
        ops.delta_rule(q, k, v[..., :4], decay, decay, state, step, key_heads=(0, 0), name="op")
    with pytest.raises(ExecutorError, match="parts of"):
        ops.split(x, ((3,), (4,)), names=("a", "b"))
