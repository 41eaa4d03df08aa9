"""Longrope is decided once, by the context that is asked for, and everybody who opens the model decides alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat import LLM
from karat.check.mistakes.rope import rope_mistakes
from karat.errors import ConfigError
from karat.models.registry import read_config
from tests.convert.folders import FAMILIES, folder_of

PHI_4_MINI: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
        "AutoTokenizer": "Xenova/gpt-4o",
    },
    "bos_token_id": 199999,
    "embd_pdrop": 0.0,
    "eos_token_id": 199999,
    "full_attn_mod": 1,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "phi3",
    "num_attention_heads": 24,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 199999,
    "partial_rotary_factor": 0.75,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"long_factor": [1.0] * 24 + [32.0] * 24, "short_factor": [1.0] * 48, "type": "longrope"},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0",
    "use_cache": True,
    "vocab_size": 200064,
}


def test_a_context_decides() -> None:
    config = read_config(PHI_4_MINI)
    shape = config.shape(0)
    assert (shape.head_dim, shape.rotary_dim, shape.window) == (128, 96, 262144)
    assert config.rope.attention_factor == pytest.approx(1.1902380714, rel=1e-9)
    assert config.usual_context == 4096 and config.max_position_embeddings == 131072
    assert config.reading(None) == config.reading(4096) == config
    long = config.reading(4097)
    assert (long.usual_context, long.rope.factors[-1], config.rope.factors[-1]) == (131072, 32.0, 1.0)
    assert long.other_ropes == (config.rope,) and config.other_ropes == (long.rope,)
    assert long.reading(4096) == config
    with pytest.raises(ConfigError, match="auto_map"):
        read_config({**PHI_4_MINI, "auto_map": {"AutoModelForCausalLM": "modeling_other.OtherForCausalLM"}})
    assert not read_config({**PHI_4_MINI, "rope_scaling": None}).other_ropes
    assert all(rope.rope_type != "longrope" or rope != long.rope for _, rope in rope_mistakes(config.rope))


@pytest.mark.parametrize("ranks", [1, 2])
def test_who_asks_for_more_gets_the_other_factors_everywhere(ranks: int, tmp_path: Path) -> None:
    """Also for short texts, as each receipt's configuration says; a process and two ranks have the same bits."""
    folder = folder_of(tmp_path / "model", **FAMILIES["phi3 with longrope"])
    found = {}
    for context in (None, 64, 65):
        with LLM(folder, max_model_len=context, tensor_parallel_size=ranks, threads=1) as llm:
            found[context] = (llm.max_model_len, llm.logits(list(range(40))), llm.fingerprint().configuration)
    assert [found[context][0] for context in found] == [64, 64, 65]
    np.testing.assert_array_equal(found[None][1], found[64][1])
    assert np.abs(found[65][1] - found[64][1]).max() > 0.1 * found[64][1].std()
    assert found[None][2] == found[64][2] != found[65][2]


def test_a_shorter_context_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_of(tmp_path / "model", **FAMILIES["phi3 with longrope"])
    LLM(folder, threads=1).close()
    assert "the context is 64 tokens: for longer ones, up to 128, RoPE has other factors" in caplog.text
