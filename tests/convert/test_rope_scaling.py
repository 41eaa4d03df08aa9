"""llama3's scaling comes back from the factors that GGUF has of it, whatever its parameters."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.checkpoint.gguf.rope import read_rope_factors
from karat.convert import MIXES, convert
from karat.convert.conversion import rope_factors
from karat.engine.llm import LLM
from karat.models.opening import open_model
from karat.models.registry import read_config
from karat.ops.rope_table import inverse_frequencies
from tests.convert.folders import folder_of
from tests.support.drawn import examples

SCALINGS = st.fixed_dictionaries(
    {
        "rope_type": st.just("llama3"),
        "factor": st.sampled_from([1.0, 1.5, 2.5, 8.0, 32.0]) | st.floats(1, 100),
        "low_freq_factor": st.just(1.0) | st.floats(0.1, 4),
        "original_max_position_embeddings": st.sampled_from([64, 8192, 100_000]) | st.integers(1, 1 << 20),
    }
)
HIGHER = st.sampled_from([3.0, 6.0, 1.0]) | st.floats(0.1, 8)


def frequencies(rope: dict[str, Any], head_dim: int) -> tuple[Any, Any]:
    """Of the config.json and of what is read from the file's tensor."""
    raw = {
        "model_type": "llama",
        "vocab_size": 8,
        "hidden_size": head_dim,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        **rope,
    }
    config = read_config(raw)
    (chunk,) = rope_factors(config).chunks()
    scaling = read_rope_factors(chunk.view("<f4"), config.rope.theta, head_dim)
    back = read_config(raw | {"rope_scaling": scaling})
    return inverse_frequencies(config.rope, head_dim), inverse_frequencies(back.rope, head_dim)


@settings(max_examples=examples(60), deadline=None)
@given(
    scaling=SCALINGS,
    higher=HIGHER,
    theta=st.sampled_from([1e4, 5e5, 1e6]) | st.floats(2, 1e7),
    head_dim=st.sampled_from([2, 16, 32, 64]),
)
def test_frequencies(scaling: dict[str, Any], higher: float, theta: float, head_dim: int) -> None:
    """Within 2e-5: a llama3 scaling is taken for what it looks like where its factors are within 1e-5."""
    scaling = scaling | {"high_freq_factor": scaling["low_freq_factor"] + higher}
    expected, got = frequencies({"rope_theta": theta, "rope_scaling": scaling}, head_dim)
    np.testing.assert_allclose(got, expected, rtol=2e-5)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("factor", [2.5, 8.0, 32.0])
@pytest.mark.parametrize(
    ("low", "high", "length"), [(2.0, 8.0, 64), (1.5, 3.0, 64), (1.0, 8.0, 8192), (1.0, 4.0, 100_000)]
)
def test_logits(factor: float, low: float, high: float, length: int, tmp_path: Path) -> None:
    """Within 1e-4 of their deviation, at 96 positions of a random model."""
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": length,
    }
    folder = folder_of(tmp_path / "model", head_dim=32, rope_scaling=scaling)
    convert(open_model(folder), tmp_path / "a.gguf", MIXES["F32"])
    ids = np.random.default_rng(0).integers(0, 4096, 96).tolist()
    expected, got = (
        LLM(path, executor="reference", dtype="float64").logits(ids) for path in (folder, tmp_path / "a.gguf")
    )
    assert np.abs(got - expected).max() <= 1e-4 * expected.std()
    convert(open_model(tmp_path / "a.gguf"), tmp_path / "b.gguf", MIXES["F32"])  # and from GGUF to GGUF
    again = open_model(tmp_path / "b.gguf").config["rope_scaling"]
    assert again == open_model(tmp_path / "a.gguf").config["rope_scaling"]
    plain = folder_of(tmp_path / "plain", head_dim=32)
    if length != 100_000:
        unscaled = LLM(plain, executor="reference", dtype="float64").logits(ids)
        assert np.abs(unscaled - expected).max() > 1e-2 * expected.std()
