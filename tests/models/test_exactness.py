"""Karat's logits against transformers' on random models of every family.

Tolerances. float32: 1e-4 of the logits' own deviation; both sides round to float32 at every op (2⁻²⁴ relative each, a
few hundred roundings deep), and transformers' float32 RoPE angles may differ in their last bit. A state of a recurrent
layer adds up 200 tokens' roundings: there four times what transformers' own float32 is off from its float64 is
allowed, where that is more. float64: 1e-9 absolute, the same depth of float64 roundings (2⁻⁵³) with a wide margin.

Covers: karat.layers.norm, karat.models.hybrids.
"""

import os
import random

import numpy as np
import pytest

from karat.kv.groups import State
from karat.models.families import FAMILIES
from karat.ops.reference import ReferenceOps

torch = pytest.importorskip("torch", reason="transformers needs torch")
from tests.support import forward, random_models  # noqa: E402
from tests.support.float64 import InFloat64, frequencies_of  # noqa: E402

SEED = int(os.environ.get("KARAT_SEED", "20261121"))
SHORT = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), 16)  # of 60 configurations in `make test`; of others 3
CASES = [
    pytest.param(family, index, marks=[pytest.mark.long] if index >= SHORT.get(family, 3) else [])
    for index in range(60)
    for family in random_models.FAMILIES
]
PROMPT_LEN = 200


def test_every_family_is_drawn() -> None:
    assert set(random_models.FAMILIES) == set(FAMILIES)


@pytest.mark.parametrize(("family", "index"), CASES)
def test_logits_equal_transformers(family: str, index: int) -> None:
    rng = random.Random(f"{SEED}-{family}-{index}")
    config = random_models.draw_config(rng, family, random_models.ROPE_TYPES[index % 4])  # each in each family
    ids = [rng.randrange(config["vocab_size"]) for _ in range(PROMPT_LEN)]
    hf = random_models.build_decided(rng, config, ids)
    with torch.no_grad():
        outputs = hf(torch.tensor([ids]), output_attentions=True)
        single = outputs.logits[0].numpy()
    assert single.std() >= 1, "the random model is too tame to test anything"
    assert _mean_largest_weight(outputs.attentions) > 0.1, "attention is close to uniform"

    ours = forward.from_transformers(config, hf, ReferenceOps("float32"), context=PROMPT_LEN)
    (narrow,) = forward.run(ours, [ids])
    assert narrow.dtype == np.float32

    truth = forward.from_transformers(config, hf, ReferenceOps("float64"), context=PROMPT_LEN)
    hf = hf.double()
    by_kind = "full_attention" in config["rope_parameters"]
    with torch.no_grad(), InFloat64(hf, frequencies_of(truth.config, by_kind=by_kind), PROMPT_LEN):
        double = hf(torch.tensor([ids])).logits[0]
    assert double.dtype == torch.float64
    (logits,) = forward.run(truth, [ids])
    assert np.abs(logits - double.numpy()).max() <= 1e-9
    limit = 1e-4 * single.std()
    if any(isinstance(keep, State) for keep in truth.keeps):
        limit = max(limit, 4 * np.abs(single - double.numpy()).max())
    assert np.abs(narrow - single).max() <= limit


def _mean_largest_weight(attentions: tuple["torch.Tensor", ...]) -> float:
    """Of each query past the hundredth: the largest weight it gives to a key; uniform attention stays below 0.01."""
    return float(torch.stack([a[0, :, 100:].max(dim=-1).values.mean() for a in attentions]).mean())


@pytest.mark.drawn(1, each="family")
@pytest.mark.parametrize("family", random_models.FAMILIES)
@pytest.mark.parametrize("index", range(3))
def test_chunks_and_batches_do_not_matter(family: str, index: int) -> None:
    """Token by token, chunks of 7 and the whole prompt; alone and in a batch of others (float64: 1e-10)."""
    rng = random.Random(f"{SEED}-chunks-{family}-{index}")
    config = random_models.draw_config(rng, family)
    prompts = [[rng.randrange(config["vocab_size"]) for _ in range(n)] for n in (90, 1, 37, 64)]
    hf = random_models.build(config, rng.randrange(2**31))
    model = forward.from_transformers(config, hf, ReferenceOps("float64"))
    whole = [forward.run(model, [p])[0] for p in prompts]
    assert whole[0].std() >= 1
    for chunk in (1, 7, None):
        together = forward.run(model, prompts, chunk=chunk, seed=rng.randrange(2**31))
        for alone, batched in zip(whole, together, strict=True):
            assert np.abs(alone - batched).max() <= 1e-10
    (by_token,) = forward.run(model, prompts[:1], chunk=1, block_size=5)
    assert np.abs(whole[0] - by_token).max() <= 1e-10
