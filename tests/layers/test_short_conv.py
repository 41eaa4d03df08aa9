"""The short convolution against transformers' module in float64, and over ranks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from karat.batch import ForwardBatch
from karat.kv.cache import new_caches
from karat.kv.groups import State
from karat.layers.place import Place
from karat.layers.shards import Wholes
from karat.layers.short_conv import ShortConv
from karat.layers.weights import AS_STORED, WeightLoader
from karat.ops.reference import ReferenceOps
from karat.ranks.group import SINGLE, Group
from tests.support import seed
from tests.support.forward import ArrayCheckpoint
from tests.support.thread_group import on_all_ranks

torch = pytest.importorskip("torch", reason="transformers needs torch")
from transformers import Lfm2Config  # noqa: E402
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv  # noqa: E402

HIDDEN, TAPS, TOKENS = 24, 5, 40
Array = np.ndarray[Any, Any]


def drawn(*, bias: bool) -> tuple[Any, dict[str, Array]]:
    """transformers' module, and its weights by name."""
    config = Lfm2Config(
        hidden_size=HIDDEN, conv_L_cache=TAPS, conv_bias=bias, num_hidden_layers=1, layer_types=["conv"]
    )
    module = Lfm2ShortConv(config, 0)
    generator = torch.Generator().manual_seed(int(seed.SEED))
    with torch.no_grad():
        for each in module.parameters():
            each.copy_(torch.randn(each.shape, generator=generator))
    return module.eval(), {f"layer.{name}": each.detach().numpy() for name, each in module.named_parameters()}


def computed(weights: dict[str, Array], x: Array, *, bias: bool, group: Group = SINGLE, chunk: int = TOKENS) -> Array:
    ops = ReferenceOps()

    def take(spec: Any) -> Any:
        stored = ArrayCheckpoint(weights).weights[spec.source]
        assert stored.shape in (spec.stored or (spec.shape,))
        return WeightLoader(ops, {spec.source: replace(stored, shape=spec.shape)}, AS_STORED)(spec)

    layer = ShortConv(Place(take, "layer", Wholes(), group), HIDDEN, TAPS, bias=bias)
    (state,) = new_caches(ops, [layer.keeps], "float32", 1, num_states=2)
    found = []
    for number, start in enumerate(range(0, len(x), chunk)):
        part = x[start : start + chunk]
        batch = ForwardBatch.of(
            1,
            token_ids=[0] * len(part),
            positions=range(start, start + len(part)),
            query_starts=[0, len(part)],
            context_lens=[start + len(part)],
            logit_rows=[],
            slots=[],
            block_tables=[],
            state_reads=[(number + 1) % 2 if number else -1],
            state_writes=[number % 2],
        )
        found.append(np.asarray(ops.read(layer(ops, part.astype(ops.dtype), ops.begin(batch), state, {}))))
    return np.concatenate(found)


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_transformers(bias: bool) -> None:
    """In one piece, in chunks that are shorter than the convolution, and token by token."""
    module, weights = drawn(bias=bias)
    x = np.random.default_rng(int(seed.SEED)).standard_normal((TOKENS, HIDDEN))
    with torch.no_grad():
        want = module.double()(torch.from_numpy(x)[None])[0].numpy()
    assert want.std() > 1
    for chunk in (TOKENS, 3, 1):
        assert np.abs(computed(weights, x, bias=bias, chunk=chunk) - want).max() <= 1e-10 * want.std()


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("bias", [False, True])
def test_ranks_compute_the_same(size: int, bias: bool) -> None:
    """A rank has the channels of its columns of out_proj: rows of each third of in_proj."""
    _, weights = drawn(bias=bias)
    x = np.random.default_rng(int(seed.SEED)).standard_normal((20, HIDDEN))
    want = computed(weights, x, bias=bias)
    for got in on_all_ranks(size, lambda group: computed(weights, x, bias=bias, group=group)):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-11 * want.std())


def test_what_it_keeps() -> None:
    layer = ShortConv(Place(lambda _: None, "layer", Wholes(), SINGLE), HIDDEN, TAPS, bias=False)
    assert layer.keeps == State(((TAPS - 1, HIDDEN),))
