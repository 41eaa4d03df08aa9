"""Models that people know and Karat does not run are refused with the reason, and what is nearest."""

from pathlib import Path

import pytest

from karat.checkpoint.unsupported import UNSUPPORTED
from karat.errors import ConfigError
from karat.models.families import COMPOSITES, FAMILIES
from karat.models.opening import open_gguf
from karat.models.registry import read_config
from tests.checkpoint.gguf.builders import STRING, kv, pair

KNOWN = (
    ("deepseek_v3", "MLA", "qwen3_moe"),
    ("deepseek_v4", "chooses the keys", "qwen3_next"),
    ("glm4_moe_lite", "MLA", "qwen3_moe"),
    ("glm4_moe", "turns neighbours", "qwen3_moe"),
    ("nemotron_h", "Mamba", "qwen3_5_moe_text"),
    ("granitemoehybrid", "Mamba", "granite"),
    ("falcon_h1", "Mamba", "granite"),
    ("cohere2", "side by side", "gemma3_text"),
    ("phi", "side by side", "phi3"),
    ("phimoe", "router", "mixtral"),
    ("gpt2", "LayerNorms", "llama"),
    ("starcoder2", "LayerNorms", "qwen2"),
    ("gemma", "Gemma 2", "gemma2"),
    ("gemma3n", "AltUp", "gemma3_text"),
    ("llama4", "chunks", "qwen3_moe"),
    ("minimax_m2", "router", "qwen3_moe"),
    ("qwen2_5_vl", "sees", "qwen3"),
    ("mllama", "pictures", "llama"),
    ("bert", "encodes", "qwen3"),
    ("kimi_linear", "MLA", "qwen3_moe"),
    ("kimi_k25", "MLA", "qwen3_moe"),
    ("glm5_next", "chooses the keys", "qwen3_next"),
    ("muse_spark", "gates", "muse_glimmer_text"),
    ("inkling", "relative", "lfm2_moe"),
    ("diffusion_gemma", "diffusion", "gemma4_text"),
    ("lfm3", "gates of heads", "lfm2"),
    ("granitemoe", "multipliers", "granite"),
    ("hunyuan_v1_dense", "after RoPE", "qwen3"),
    ("laguna", "softplus", "qwen3_moe"),
    ("mellum", "windows beside experts", "qwen3_moe"),
    ("apertus", "no gate", "qwen3"),
)


@pytest.mark.parametrize(("model_type", "why", "nearest"), KNOWN)
def test_a_folder_is_refused_with_the_nearest(model_type: str, why: str, nearest: str) -> None:
    """Also where it brings code, or is quantised: neither is the reason."""
    raw = {"model_type": model_type, "auto_map": {"AutoModel": "x.Y"}, "quantization_config": {"quant_method": "fp8"}}
    with pytest.raises(ConfigError) as caught:
        read_config(raw)
    text = str(caught.value)
    assert f"model_type='{model_type}' is not supported: " in text and why in text
    assert f"the nearest family that Karat runs is {nearest};" in text


@pytest.mark.parametrize(
    "architecture", ["deepseek2", "nemotron_h", "command-r", "gptneox", "mamba", "glm4moe", "bert"]
)
def test_a_file_is_refused_with_the_nearest(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(kv(pair("general.architecture", STRING, architecture)))
    with pytest.raises(ConfigError) as caught:
        open_gguf(path)
    kind = UNSUPPORTED[architecture]
    assert f"is not supported: {kind.why}; the nearest family that Karat runs is {kind.nearest};" in str(caught.value)


def test_the_list_is_of_others_and_names_what_runs() -> None:
    architectures = {family.gguf.architecture for family in FAMILIES.values()}
    assert not UNSUPPORTED.keys() & (FAMILIES.keys() | COMPOSITES.keys() | architectures)
    assert {kind.nearest for kind in UNSUPPORTED.values()} <= FAMILIES.keys()


def test_of_a_kind_that_nobody_knows_only_the_name_is_said() -> None:
    with pytest.raises(ConfigError, match=r"model_type='frob' is not supported; Karat has "):
        read_config({"model_type": "frob"})
