"""Attention and its cache on every executor against torch in float64; test_ops.py states the bounds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.batch import plain_batch
from karat.errors import NumericsError
from karat.ops.api import HeadGroups, PagedAttention
from karat.ops.executor import CacheSpec, Executor
from tests.support.conformance import F, batch_of, check, draw, every_executor, exact, load, seeds, torch
from tests.support.drawn import examples


def attended(q: Any, k: Any, v: Any, mask: Any, scale: float, sinks: Any, cap: float | None = None) -> Any:
    """Attention of q, k, v [heads, tokens or keys, head_dim]. A sink is one more key, of zeros, as is its value."""
    if cap is not None:
        scores = (cap * torch.tanh(q @ k.transpose(1, 2) * scale / cap)).masked_fill(~mask, -torch.inf)
        if sinks is not None:
            scores = torch.cat((scores, exact(sinks)[:, None, None].expand(-1, len(mask), 1)), dim=-1)
        return torch.softmax(scores, dim=-1)[..., : k.shape[1]] @ v
    if sinks is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    zero = torch.zeros(len(k), 1, k.shape[-1], dtype=torch.float64)
    added = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf).expand(len(q), -1, -1)
    added = torch.cat((added, exact(sinks)[:, None, None].expand(-1, len(mask), 1)), dim=-1)
    k, v = torch.cat((k, zero), dim=1), torch.cat((v, zero), dim=1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale)


@every_executor
@given(data=st.data(), kv_heads=st.integers(1, 3), group=st.integers(1, 4), half=st.integers(1, 8), seed=seeds)
@settings(max_examples=examples(60))
def test_paged_attention(ops: Executor, data: st.DataObject, kv_heads: int, group: int, half: int, seed: int) -> None:
    """Against scaled_dot_product_attention with an explicit mask; slots that do not count hold NaN.

    The first and the last group of heads may be cut, as on a rank. There may be sinks, and a cap.
    """
    lens = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    new = [data.draw(st.integers(1, n)) for n in lens]
    window = data.draw(st.none() | st.integers(1, 45))
    first = data.draw(st.integers(0, group - 1))
    read_by = np.repeat(np.arange(kv_heads), group)[first:]  # the KV head of each query head
    read_by = read_by[: len(read_by) - data.draw(st.integers(0, group - 1 - (first if kv_heads == 1 else 0)))]
    d, heads = 2 * half, len(read_by)
    groups = None if first == 0 and heads == kv_heads * group else HeadGroups(group, first)
    everything, step_batch = batch_of(lens, lens, seed=seed), batch_of(lens, new, seed=seed)
    ((_, cache),) = ops.new_cache(
        [
            CacheSpec(
                layers=(0, 1), num_blocks=40, block_size=4, num_kv_heads=kv_heads, k_dim=d, v_dim=d, dtype=ops.dtype
            )
        ]
    )
    sinks = draw(seed, (heads,), dtype="float32")[0] * 4 if data.draw(st.booleans()) else None
    cap = data.draw(st.none() | st.floats(0.5, 20))
    stale = np.full((152, kv_heads, d), np.nan, ops.dtype)
    ops.kv_write(stale, stale, cache, ops.begin(batch_of([152], [152])))
    total = sum(lens)
    q, k, v = draw(seed, (total, heads, d), (total, kv_heads, d), (total, kv_heads, d), dtype=ops.dtype)
    ops.kv_write(k, v, cache, ops.begin(everything))
    starts = np.concatenate(([0], np.cumsum(lens)))
    rows = np.concatenate([np.arange(starts[i + 1] - new[i], starts[i + 1]) for i in range(len(lens))])
    seen: list[np.ndarray[Any, Any]] = []
    op = PagedAttention(
        q[rows],
        cache,
        ops.begin(step_batch),
        scale=0.37,
        window=window,
        name="a.b",
        groups=groups,
        sinks=None if sinks is None else load(ops, sinks),
        cap=cap,
    )
    got = ops.read(ops.apply(op))
    ops.apply(replace(op, observe=lambda what, values: seen.append(values) if what == "weights" else None))
    at = 0
    for i, (n, m) in enumerate(zip(lens, new, strict=True)):
        part = slice(starts[i], starts[i + 1])
        query, key = torch.arange(n - m, n)[:, None], torch.arange(n)[None, :]
        mask = (key <= query) & (key > query - (window or n + 1))
        want = attended(
            exact(q[part][n - m :]).transpose(0, 1),
            *(exact(x[part]).transpose(0, 1)[read_by] for x in (k, v)),
            mask,
            0.37,
            sinks,
            cap,
        )
        want = want.transpose(0, 1).reshape(m, heads * d)
        observed = torch.from_numpy(np.asarray(seen[i], np.float64)) @ exact(v[part]).transpose(0, 1)[read_by]
        np.testing.assert_allclose(observed.transpose(0, 1).reshape(m, heads * d), want, rtol=0, atol=1e-3)
        largest = np.abs(q).max() * np.abs(k).max() * d * 0.37
        bound = (8 * (d + n) + 4 * largest * (d + 8)) * np.abs(v).max()
        check(ops, got[at : at + m], want, bound)
        at += m


@every_executor
@pytest.mark.parametrize("window", [None, 1500])
def test_attention_over_thousands_of_keys(ops: Executor, window: int | None) -> None:
    """A step of one token, a chunk and a whole text, of which some tokens see more than 4,000 keys.

    Weights add up to 1, so rounding errors of weight * V add up to those of one product. The bound: 32 of them, and
    d + 8 for each score. Scores are about 8 at most here, and so are sinks, which there are beside the window; so is a
    cap.
    """
    lens, new, heads, kv_heads, d = [4099, 3000, 300], [1, 70, 300], 6, 2, 16
    spec = CacheSpec(
        layers=(0,), num_blocks=500, block_size=16, num_kv_heads=kv_heads, k_dim=d, v_dim=d, dtype=ops.dtype
    )
    ((cache,),) = ops.new_cache([spec])
    everything, step_batch = (batch_of(lens, counts, block_size=16, seed=3) for counts in (lens, new))
    q, k, v = draw(5, (sum(lens), heads, d), (sum(lens), kv_heads, d), (sum(lens), kv_heads, d), dtype=ops.dtype)
    sinks = None if window is None else np.linspace(-8, 8, heads, dtype=np.float32)
    held, cap = None if sinks is None else load(ops, sinks), None if window is None else 5.0
    ops.kv_write(k, v, cache, ops.begin(everything))
    starts = np.concatenate(([0], np.cumsum(lens)))
    rows = np.concatenate([np.arange(starts[i + 1] - new[i], starts[i + 1]) for i in range(len(lens))])
    step = ops.begin(step_batch)
    got = ops.read(ops.paged_attention(q[rows], cache, step, scale=0.25, window=window, name="op", sinks=held, cap=cap))
    at = 0
    for i, (n, m) in enumerate(zip(lens, new, strict=True)):
        part = slice(starts[i], starts[i + 1])
        query, key = torch.arange(n - m, n)[:, None], torch.arange(n)[None, :]
        mask = (key <= query) & (key > query - (window or n + 1))
        read = [exact(x[part]).transpose(0, 1).repeat_interleave(heads // kv_heads, dim=0) for x in (k, v)]
        want = attended(exact(q[part][n - m :]).transpose(0, 1), *read, mask, 0.25, sinks, cap)
        want = want.transpose(0, 1).reshape(m, heads * d)
        check(ops, got[at : at + m], want, (32 + 8 * (d + 8)) * np.abs(v).max())
        at += m


@every_executor
@pytest.mark.parametrize("kv_dtype", ["float16", "bfloat16", "float32"])
@given(values=st.lists(st.floats(-60000, 60000, width=32), min_size=4, max_size=4))
def test_cache_rounds_to_nearest_even(ops: Executor, kv_dtype: Any, values: list[float]) -> None:
    """A single key has weight 1, so attention returns V as the cache holds it."""
    ((cache,),) = ops.new_cache(
        [CacheSpec(layers=(0,), num_blocks=1, block_size=4, num_kv_heads=1, k_dim=4, v_dim=4, dtype=kv_dtype)]
    )
    step = ops.begin(plain_batch([0]))
    v = np.array(values, ops.dtype).reshape(1, 1, 4)
    ops.kv_write(np.ones_like(v), v, cache, step)
    out = ops.read(ops.paged_attention(np.ones_like(v), cache, step, scale=1.0, window=None, name="a.b"))
    want = torch.tensor(values, dtype=torch.float32).to(getattr(torch, kv_dtype)).double()
    np.testing.assert_array_equal(out[0].astype(np.float64), want.numpy())


@every_executor
def test_cache_refuses_what_it_cannot_hold(ops: Executor) -> None:
    ((cache,),) = ops.new_cache(
        [CacheSpec(layers=(0,), num_blocks=2, block_size=4, num_kv_heads=2, k_dim=2, v_dim=2, dtype="float16")]
    )
    k = np.ones((1, 2, 2), ops.dtype)
    k[0, 1, 0] = 70000
    with pytest.raises(NumericsError, match=r"K of layer 0, KV head 1, token 0 .*70000 .*kv-dtype"):
        ops.kv_write(k, np.ones_like(k), cache, ops.begin(batch_of([1], [1])))
