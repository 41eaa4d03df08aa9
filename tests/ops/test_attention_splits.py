"""One token over thousands of keys: splits of 256, merged sixteen at a time, have the bits of many tokens in tiles.

Rows of a tile may begin in different splits.
"""

from typing import Any

import numpy as np
import pytest

from karat.batch import ForwardBatch
from karat.ops.executor import CacheSpec
from karat.ops.native import NativeOps, supported_isas, unavailable_reason
from tests.support.weights import weight_of

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

BLOCK, DIM, SCALE = 16, 20, 0.3


def last_tokens(context: int, new: int, block: int = BLOCK) -> ForwardBatch:
    """The last `new` tokens of one sequence, on blocks in falling order."""
    count = -(-context // block)
    table = np.arange(count)[::-1].astype(np.int32)
    positions = np.arange(context - new, context, dtype=np.int32)
    slots = table[positions // block] * block + positions % block
    return ForwardBatch.of(
        block,
        token_ids=[0] * new,
        positions=positions,
        query_starts=[0, new],
        context_lens=[context],
        logit_rows=[new - 1],
        slots=[slots],
        block_tables=[[table]],
    )


def attended(
    isa: str, dtype: Any, context: int, window: int | None, group: int, block: int, dim: int, factor: float
) -> dict[int, Any]:
    """What the last of `context` tokens gets, by the number of tokens in its step. All that it must not see is NaN.

    Groups of an odd size have sinks.
    """
    ops = NativeOps(isa=isa)
    rng = np.random.default_rng([context, group])
    k, v = rng.standard_normal((2, context, 2, dim)).astype(np.float32)
    k[2 * context // 3 :: 97] *= factor  # splits with other tops
    q = rng.standard_normal((40, 2 * group, dim)).astype(np.float32)
    blocks = -(-context // block)
    ((other, cache),) = ops.new_cache(
        [
            CacheSpec(
                layers=(0, 1), num_blocks=blocks, block_size=block, num_kv_heads=2, k_dim=dim, v_dim=dim, dtype=dtype
            )
        ]
    )
    first = max(0, context - window) if window else 0
    k[:first] = v[:first] = np.nan
    stale = np.full((blocks * block, 2, dim), np.nan, np.float32)
    ops.kv_write(stale, stale, cache, ops.begin(last_tokens(len(stale), len(stale), block)))
    ops.kv_write(k, v, cache, ops.begin(last_tokens(context, context, block)))
    ops.kv_write(stale, stale, other, ops.begin(last_tokens(len(stale), len(stale), block)))  # another layer
    sinks = np.linspace(-4, 9, 2 * group, dtype=np.float32) if group % 2 else None
    held = None if sinks is None else ops.load(weight_of(sinks, "F32", "sinks"))
    got = {
        new: ops.read(
            ops.paged_attention(
                q[40 - new :],
                cache,
                ops.begin(last_tokens(context, new, block)),
                scale=SCALE,
                window=window,
                name="attention",
                sinks=held,
            )
        )[-1]
        for new in (1, 3, 40)
    }
    if dtype == "float32":
        heads = np.repeat(np.arange(2), group)
        scores = np.einsum("hd,nhd->hn", q[-1].astype(np.float64), k[first:, heads].astype(np.float64)) * np.float32(
            SCALE
        )
        sink = np.full((2 * group, 1), -np.inf) if sinks is None else sinks[:, None].astype(np.float64)
        top = np.maximum(scores.max(axis=1, keepdims=True), sink)
        weights = np.exp(scores - top)
        weights /= weights.sum(axis=1, keepdims=True) + np.exp(sink - top)
        want = np.einsum("hn,nhd->hd", weights, v[first:, heads].astype(np.float64)).reshape(-1)
        # Roundings of the longest chain of a score, which its weight inherits, and of those of a split and its merging.
        largest = np.einsum("hd,nhd->hn", np.abs(q[-1]), np.abs(k[first:, heads])).max() * SCALE
        bound = ((dim + 4) * largest + 256 + 2 * context / 256 + 8) * 2.0**-24 * np.abs(v[first:]).max()
        np.testing.assert_array_less(np.abs(got[1] - want), bound)
    return got


@pytest.mark.drawn(1, each=("dtype", "context", "window", "group", "block", "dim", "factor"))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("context", "window", "group", "block", "dim"),
    [
        # Blocks of whole groups of 16 slots are read straight from the cache, in pieces of keys by the size of a head.
        (256 * 16, None, 7, 16, 20),
        (256 * 17 + 1, None, 3, 48, 34),
        (256 * 33 + 100, None, 1, 16, 136),
        (5000, 300, 9, 64, 64),
        (2000, 700, 4, 5, 136),
        (777, 100, 14, 16, 136),
        (5000, 4480, 2, 24, 20),  # the first keys of forty tokens are 481 to 520: in two splits
        (300, None, 150, 16, 20),  # more rows of one token than are taken together
    ],
)
@pytest.mark.parametrize("factor", [8, 150])  # of 150, most weights are too small for a float
def test_one_token_has_the_bits_of_many_in_every_build(
    dtype: str, context: int, window: int | None, group: int, block: int, dim: int, factor: float
) -> None:
    """So have blocks of five, which lie in two groups or regions and are unpacked before they are read."""
    ways = [(isa, block) for isa in supported_isas()] + [(supported_isas()[-1], 5)]
    outputs = [
        out for isa, size in ways for out in attended(isa, dtype, context, window, group, size, dim, factor).values()
    ]
    assert np.isfinite(outputs[0]).all()
    for out in outputs[1:]:
        np.testing.assert_array_equal(out.view(np.uint32), outputs[0].view(np.uint32))


def test_what_is_not_a_number_stays_so_in_every_build() -> None:
    """Rows that see a key of NaN or infinity end in NaN, and others do not."""
    context, new = 300, 40
    for isa in supported_isas():
        for value in (np.nan, np.inf, -np.inf):
            ops = NativeOps(isa=isa)
            rng = np.random.default_rng(0)
            k, v = rng.standard_normal((2, context, 1, DIM)).astype(np.float32)
            k[280] = value
            q = np.abs(rng.standard_normal((new, 2, DIM))).astype(np.float32)
            ((cache,),) = ops.new_cache(
                [
                    CacheSpec(
                        layers=(0,),
                        num_blocks=19,
                        block_size=BLOCK,
                        num_kv_heads=1,
                        k_dim=DIM,
                        v_dim=DIM,
                        dtype="float32",
                    )
                ]
            )
            ops.kv_write(k, v, cache, ops.begin(last_tokens(context, context)))
            for count in (1, new):
                batch = ops.begin(last_tokens(context, count))
                out = ops.read(ops.paged_attention(q[new - count :], cache, batch, scale=1.0, window=None, name="a"))
                sees = np.arange(context - count, context) >= 280
                # Of minus infinity the weight is 0, as of any score that is low enough.
                is_nan = np.repeat(sees & (value != -np.inf), 2 * DIM).reshape(out.shape)
                np.testing.assert_array_equal(np.isnan(out), is_nan)


def test_a_weight_too_small_for_a_float_is_none() -> None:
    """Keys a hundred below the largest score count for nothing, in any split, however large their values."""
    context, new = 300, 40
    k, v = np.zeros((context, 1, DIM), np.float32), np.full((context, 1, DIM), 1e36, np.float32)
    k[0, :, 0], v[0] = 100, 1
    q = np.zeros((new, 2, DIM), np.float32)
    q[:, :, 0] = 1
    for isa in supported_isas():
        ops = NativeOps(isa=isa)
        ((cache,),) = ops.new_cache(
            [
                CacheSpec(
                    layers=(0,), num_blocks=19, block_size=BLOCK, num_kv_heads=1, k_dim=DIM, v_dim=DIM, dtype="float32"
                )
            ]
        )
        ops.kv_write(k, v, cache, ops.begin(last_tokens(context, context)))
        for count in (1, new):
            batch = ops.begin(last_tokens(context, count))
            out = ops.read(ops.paged_attention(q[:count], cache, batch, scale=1.0, window=None, name="a"))
            np.testing.assert_array_equal(out, 1)
