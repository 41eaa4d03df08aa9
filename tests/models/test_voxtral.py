"""A Llama with an audio encoder in its folder: its text part has transformers' logits, and the rest is of audio.

Tolerances are those of test_exactness.py; what a folder with several models in it may state is in test_mistral3.py.
"""

import random
from pathlib import Path

import numpy as np
import pytest

from karat.checkpoint.unused import AUDIO
from karat.models.opening import open_model
from karat.models.registry import build, find_weights, read_config
from karat.ops.reference import ReferenceOps
from tests.support.seed import SEED

torch = pytest.importorskip("torch", reason="transformers needs torch")

from tests.models.test_mistral3 import SPELLINGS, write  # noqa: E402
from tests.support import forward, random_models  # noqa: E402


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_its_text_is_a_llama(spelling: str, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED}-voxtral-{spelling}")
    raw = random_models.draw_voxtral(rng)
    hf = random_models.build(raw, rng.randrange(2**31))
    folder = write(tmp_path / "model", spelling, raw, hf)
    ids = [rng.randrange(raw["text_config"]["vocab_size"]) for _ in range(100)]
    with torch.no_grad():
        expected = hf(torch.tensor([ids])).logits[0].numpy()
    checkpoint = open_model(folder)
    config = read_config(checkpoint.config)
    assert config.model_type == "llama"
    num_audio = sum("language_model" not in name and "lm_head" not in name for name in hf.state_dict())
    assert {part: len(weights) for part, weights in checkpoint.unused.items()} == {AUDIO: num_audio}
    assert checkpoint.warnings == (f"tensors that are not used: {num_audio} of audio (Karat reads no sound)",)
    assert len(find_weights(config, checkpoint)) >= len(checkpoint.weights)  # a tied head is one of them again
    model = build(config, ReferenceOps("float32"), checkpoint, num_positions=512)
    (logits,) = forward.run(model, [ids])
    assert np.abs(logits - expected).max() <= 1e-4 * expected.std()
