"""The gated delta net against transformers' module in float64, over ranks, and where heads are tiled."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from karat.batch import ForwardBatch
from karat.kv.cache import new_caches
from karat.kv.groups import State
from karat.layers.delta_net import DeltaShape, GatedDeltaNet
from karat.layers.place import Place
from karat.layers.shards import Wholes
from karat.layers.weights import AS_STORED, WeightLoader
from karat.ops.executor import Executor
from karat.ops.reference import ReferenceOps
from karat.ranks.group import SINGLE, Group
from tests.support import seed
from tests.support.forward import ArrayCheckpoint
from tests.support.thread_group import on_all_ranks

torch = pytest.importorskip("torch", reason="transformers needs torch")
from transformers import Qwen3_5TextConfig  # noqa: E402
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet  # noqa: E402

from tests.support.float64 import Widen  # noqa: E402

HIDDEN, EPS, TOKENS = 24, 1e-3, 70
SHAPE = DeltaShape(key_heads=2, value_heads=8, key_dim=6, value_dim=10, taps=4)
Array = np.ndarray[Any, Any]


def drawn() -> tuple[Any, dict[str, Array]]:
    """transformers' module, and its weights by name."""
    config = Qwen3_5TextConfig(
        hidden_size=HIDDEN,
        linear_num_key_heads=SHAPE.key_heads,
        linear_num_value_heads=SHAPE.value_heads,
        linear_key_head_dim=SHAPE.key_dim,
        linear_value_head_dim=SHAPE.value_dim,
        linear_conv_kernel_dim=SHAPE.taps,
        rms_norm_eps=EPS,
        hidden_act="silu",
    )
    module = Qwen3_5GatedDeltaNet(config, 0)
    generator = torch.Generator().manual_seed(int(seed.SEED))
    with torch.no_grad():
        for name, each in module.named_parameters():
            noise = torch.randn(each.shape, generator=generator)
            each.copy_(torch.log(16 * torch.rand(each.shape, generator=generator)) if name == "A_log" else noise)
    return module.eval(), {f"layer.{name}": each.detach().numpy() for name, each in module.named_parameters()}


def computed(
    weights: dict[str, Array],
    x: Array,
    shape: DeltaShape = SHAPE,
    ops: Executor | None = None,
    group: Group = SINGLE,
    *,
    joined: bool = False,
) -> Array:
    ops = ReferenceOps() if ops is None else ops

    def take(spec: Any) -> Any:
        stored = ArrayCheckpoint(weights).weights[spec.source]
        assert stored.shape in (spec.stored or (spec.shape,))
        flat = replace(stored, shape=spec.shape)
        return WeightLoader(ops, {spec.source: flat}, AS_STORED)(spec)

    place = Place(take, "layer", Wholes(), group)
    layer = GatedDeltaNet(place, HIDDEN, shape, eps=EPS, of_log=True, joined=joined)
    (state,) = new_caches(ops, [layer.keeps], "float32", 1, num_states=1)
    count = len(x)
    batch = ForwardBatch.of(
        1,
        token_ids=[0] * count,
        positions=range(count),
        query_starts=[0, count],
        context_lens=[count],
        logit_rows=[],
        slots=[],
        block_tables=[],
        state_writes=[0],
    )
    return np.asarray(ops.read(layer(ops, x.astype(ops.dtype), ops.begin(batch), state, {})))


def test_it_is_transformers() -> None:
    module, weights = drawn()
    x = np.random.default_rng(int(seed.SEED)).standard_normal((TOKENS, HIDDEN))
    with torch.no_grad(), Widen():
        want = module.double()(torch.from_numpy(x)[None])[0].numpy()
    assert want.std() > 0.1
    assert np.abs(computed(weights, x) - want).max() <= 1e-10 * want.std()


def tiled(weights: dict[str, Array]) -> dict[str, Array]:
    """The same heads in the order of a GGUF file: value head i of the file is the i-th of those that take turns."""
    order = np.arange(SHAPE.value_heads).reshape(SHAPE.key_heads, -1).T.reshape(-1)
    rows = (order[:, None] * SHAPE.value_dim + np.arange(SHAPE.value_dim)).reshape(-1)
    before = 2 * SHAPE.key_heads * SHAPE.key_dim
    channels = np.concatenate((np.arange(before), before + rows))
    by_name = {"in_proj_qkv.weight": channels, "conv1d.weight": channels, "in_proj_z.weight": rows}
    by_name |= dict.fromkeys(("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"), order)
    found = {name: values[by_name.get(name.removeprefix("layer."), slice(None))] for name, values in weights.items()}
    return found | {"layer.out_proj.weight": weights["layer.out_proj.weight"][:, rows]}


def test_tiled_heads_are_the_same_layer() -> None:
    _, weights = drawn()
    x = np.random.default_rng(int(seed.SEED)).standard_normal((20, HIDDEN))
    want, again = computed(weights, x), tiled(weights)
    np.testing.assert_allclose(computed(again, x, replace(SHAPE, tiled=True)), want, rtol=0, atol=1e-12)
    assert np.abs(computed(again, x) - want).max() > 0.01


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("tiles", [False, True])
def test_ranks_compute_the_same(size: int, tiles: bool) -> None:
    """A rank has its value heads, and the key heads that they read."""
    _, weights = drawn()
    shape = replace(SHAPE, tiled=tiles)
    x = np.random.default_rng(int(seed.SEED)).standard_normal((20, HIDDEN))
    want = computed(weights, x, shape)
    for got in on_all_ranks(size, lambda group: computed(weights, x, shape, group=group)):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_b_and_a_may_be_one_matrix(size: int) -> None:
    """For each key head the rows of b, then those of a; a rank may have a part of a key head's value heads."""
    _, weights = drawn()
    x = np.random.default_rng(int(seed.SEED)).standard_normal((20, HIDDEN))
    b, a = (weights[f"layer.in_proj_{part}.weight"].reshape(SHAPE.key_heads, -1, HIDDEN) for part in "ba")
    joined = weights | {"layer.in_proj_ba.weight": np.concatenate((b, a), axis=1).reshape(-1, HIDDEN)}
    want = computed(weights, x)
    for got in on_all_ranks(size, lambda group: computed(joined, x, group=group, joined=True)):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_what_it_keeps() -> None:
    layer = GatedDeltaNet(Place(lambda _: None, "layer", Wholes(), SINGLE), HIDDEN, SHAPE, eps=EPS, of_log=True)
    assert layer.keeps == State(((3, 2 * 12 + 80), (8, 6, 10)))
