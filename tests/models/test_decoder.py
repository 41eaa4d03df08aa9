"""A model whose layers have heads, sizes, windows and RoPE of their own, beside the same model in NumPy."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.config import LayerShape, ModelConfig
from karat.kv.cache import by_layer
from karat.kv.groups import CacheGroup, Keys, groups_of
from karat.models.cut_units import cut_units
from karat.models.decoder import outline, weight_specs
from karat.models.degrees import working_degrees
from karat.models.registry import Model, build, find_weights
from karat.ops.executor import CacheSpec, Executor
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps
from karat.ops.rope_table import cos_sin_table
from karat.ranks.group import Group
from tests.support.forward import ArrayCheckpoint
from tests.support.thread_group import on_all_ranks
from tests.support.uneven import MAX_LEN, SHAPES, uneven_config

Array = NDArray[np.float64]
CONFIG = uneven_config()
NUM_TOKENS, BLOCK = 23, 4


def weights() -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(3)
    return {spec.source: rng.normal(0, 0.3, spec.shape).astype(np.float32) for spec in weight_specs(CONFIG)}


def in_numpy(config: ModelConfig, tensors: Mapping[str, NDArray[np.float32]], ids: list[int]) -> Array:
    """Logits [tokens, vocab], of the definitions alone."""

    def weight(name: str) -> Array:
        return tensors[f"{name}.weight"].astype(np.float64)

    def norm(x: Array, name: str) -> Array:
        scale: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_norm_eps)
        return scale * weight(name)

    def attention(x: Array, at: str, shape: LayerShape) -> Array:
        q, k, v = (
            (x @ weight(f"{at}.{part}_proj").T).reshape(len(x), -1, shape.head_dim).swapaxes(0, 1) for part in "qkv"
        )
        if shape.rope is not None:
            table = cos_sin_table(shape.rope, head_dim=shape.head_dim, num_positions=len(x), dtype=np.dtype(np.float64))
            q, k = (turned(heads, table.cos, table.sin) for heads in (q, k))
        k, v = (np.repeat(heads, shape.num_heads // shape.num_kv_heads, axis=0) for heads in (k, v))
        place = np.arange(len(x))
        age = place[:, None] - place
        seen = (age >= 0) & (age < (shape.window or len(x)))
        scores = np.where(seen, q @ k.swapaxes(1, 2) / np.sqrt(shape.head_dim), -np.inf)
        chance = np.exp(scores - scores.max(-1, keepdims=True))
        mixed: Array = (chance / chance.sum(-1, keepdims=True)) @ v
        return mixed.swapaxes(0, 1).reshape(len(x), -1) @ weight(f"{at}.o_proj").T

    x = weight("model.embed_tokens")[ids]
    for index, shape in enumerate(config.shapes):
        at = f"model.layers.{index}"
        x = x + attention(norm(x, f"{at}.input_layernorm"), f"{at}.self_attn", shape)
        h = norm(x, f"{at}.post_attention_layernorm")
        gate, up = (h @ weight(f"{at}.mlp.{part}_proj").T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weight(f"{at}.mlp.down_proj").T
    return norm(x, "model.norm") @ weight("lm_head").T


def turned(x: Array, cos: Array, sin: Array) -> Array:
    """Pairs (i, i + half) of heads [heads, tokens, head_dim]."""
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def run(model: Model, ids: list[int], chunk: int) -> Array:
    """Logits of all tokens, in steps of `chunk`; each cache group has blocks of its own, in an order of its own."""
    ops, groups = model.ops, groups_of(model.keeps)
    num_blocks = -(-len(ids) // BLOCK)
    caches = caches_of(ops, model, groups, num_blocks)
    tables = [np.random.default_rng(number).permutation(num_blocks) for number in range(len(groups))]
    parts = []
    for start in range(0, len(ids), chunk):
        positions = np.arange(start, min(start + chunk, len(ids)))
        batch = ForwardBatch.of(
            BLOCK,
            token_ids=[ids[position] for position in positions],
            positions=positions,
            query_starts=[0, len(positions)],
            context_lens=[start + len(positions)],
            logit_rows=range(len(positions)),
            slots=[table[positions // BLOCK] * BLOCK + positions % BLOCK for table in tables],
            block_tables=[[table] for table in tables],
        )
        parts.append(np.array(ops.read(model.forward(ops.begin(batch), caches)), np.float64))
    return np.concatenate(parts)


def caches_of(ops: Executor, model: Model, groups: tuple[CacheGroup, ...], num_blocks: int) -> Any:
    specs = [
        CacheSpec(
            layers=group.layers,
            num_blocks=num_blocks,
            block_size=BLOCK,
            num_kv_heads=group.keys.kv_heads,
            k_dim=group.keys.k_dim,
            v_dim=group.keys.v_dim,
            dtype=ops.dtype,
        )
        for group in groups
    ]
    pairs = zip(groups, ops.new_cache(specs), strict=True)
    held = {layer: handle for group, handles in pairs for layer, handle in zip(group.layers, handles, strict=True)}
    return by_layer(model.keeps, held)


@pytest.fixture(scope="module")
def checkpoint() -> ArrayCheckpoint:
    return ArrayCheckpoint(weights())


IDS = [int(token) for token in np.random.default_rng(8).integers(0, CONFIG.vocab_size, NUM_TOKENS)]


def test_layers_of_one_shape_and_window_are_one_cache_group() -> None:
    assert groups_of(outline(CONFIG).keeps) == (
        CacheGroup(Keys(4, 6, 6, 5), (0, 2)),
        CacheGroup(Keys(2, 10, 10, None), (1,)),
    )
    assert len(outline(CONFIG).rotations) == 2, "layer 1 has no RoPE"


@pytest.mark.parametrize("chunk", [NUM_TOKENS, 1, 7])
def test_the_reference_computes_layers_of_different_shapes(checkpoint: ArrayCheckpoint, chunk: int) -> None:
    model = build(CONFIG, ReferenceOps(), checkpoint, num_positions=MAX_LEN)
    np.testing.assert_allclose(run(model, IDS, chunk), in_numpy(CONFIG, weights(), IDS), rtol=0, atol=1e-11)


@pytest.mark.parametrize("change", [{"window": 6}, {"window": None}, {"rope": None}, {"rope": SHAPES[2].rope}])
def test_a_layer_computes_by_its_own_shape(checkpoint: ArrayCheckpoint, change: dict[str, Any]) -> None:
    changed = uneven_config(replace(SHAPES[0], **change), *SHAPES[1:])
    got = run(build(changed, ReferenceOps(), checkpoint, num_positions=MAX_LEN), IDS, 7)
    np.testing.assert_allclose(got, in_numpy(changed, weights(), IDS), rtol=0, atol=1e-11)
    assert np.abs(got - in_numpy(CONFIG, weights(), IDS)).max() > 1e-3


@pytest.mark.skipif(unavailable_reason() is not None, reason="no native extension here")
@pytest.mark.parametrize("chunk", [NUM_TOKENS, 1, 7])
def test_native_computes_layers_of_different_shapes(checkpoint: ArrayCheckpoint, chunk: int) -> None:
    model = build(CONFIG, NativeOps(threads=2), checkpoint, num_positions=MAX_LEN)
    want = in_numpy(CONFIG, weights(), IDS)
    np.testing.assert_allclose(run(model, IDS, chunk), want, rtol=0, atol=1e-5 * want.std())


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_share_out_layers_of_different_shapes(checkpoint: ArrayCheckpoint, size: int) -> None:
    units = cut_units(CONFIG, find_weights(CONFIG, checkpoint))
    assert size in working_degrees(CONFIG, units)

    def on_rank(group: Group) -> Array:
        model = build(CONFIG, ReferenceOps(), checkpoint, num_positions=MAX_LEN, group=group)
        assert [keys.kv_heads for keys in model.keeps if isinstance(keys, Keys)] == [
            shape.num_kv_heads // min(size, shape.num_kv_heads) for shape in SHAPES
        ]
        return run(model, IDS, 7)

    want = in_numpy(CONFIG, weights(), IDS)
    for got in on_all_ranks(size, on_rank):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-11)
