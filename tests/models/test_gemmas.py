"""The KV cache of Gemma 2 and 3: float32 unless asked for otherwise, which loading says; what does not fit is named."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from karat import LLM
from karat.bench.shape_configs import shape_config
from karat.kv.groups import groups_of
from karat.models.decoder import outline
from karat.models.registry import read_config
from karat.ops.native import unavailable_reason
from tests.engine.tiny import GREEDY, write_model

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason="no native executor")

GEMMAS: dict[str, dict[str, Any]] = {
    "gemma2": {"architectures": ["Gemma2ForCausalLM"]},
    "gemma3_text": {"architectures": ["Gemma3ForCausalLM"], "sliding_window_pattern": 2},
}


def gemma(folder: Path, family: str, **more: Any) -> Path:
    """A model with a window of 32 in one of its two layers."""
    config = {"model_type": family, "head_dim": 16, "sliding_window": 32, "hidden_activation": "gelu_pytorch_tanh"}
    path = write_model(folder, **{**config, **GEMMAS[family], "hidden_act": None, **more})
    raw = json.loads((path / "config.json").read_text())
    raw = {key: value for key, value in raw.items() if key != "use_sliding_window"}
    (path / "config.json").write_text(json.dumps(raw))
    return path


@pytest.mark.parametrize("family", GEMMAS)
def test_the_cache_is_float32_unless_asked_for_otherwise(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = gemma(tmp_path, family)
    with caplog.at_level(logging.WARNING):
        assert LLM(path).kv_dtype == "float32"
    assert (
        "the KV cache is float32: values of this kind of model do not fit float16; kv_dtype (--kv-dtype)" in caplog.text
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert LLM(path, kv_dtype="float16").kv_dtype == "float16"
    assert "the KV cache is" not in caplog.text


@pytest.mark.parametrize("family", GEMMAS)
def test_a_value_beyond_float16_is_named_and_fits_the_default(family: str, tmp_path: Path) -> None:
    """V as real models have it: beyond 65,504 in a layer, and no other result out of the ordinary."""
    path = gemma(tmp_path, family)
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.1.self_attn.v_proj.weight"] *= np.float32(3e4)
    tensors["model.layers.1.self_attn.o_proj.weight"] /= np.float32(3e4)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    (answer,) = LLM(path).generate(["Once upon a time"], GREEDY)
    assert answer.outputs[0].error is None and len(answer.outputs[0].token_ids) == GREEDY.max_tokens
    (answer,) = LLM(path, kv_dtype="float16").generate(["Once upon a time"], GREEDY)
    words = (
        r"V of layer 1, KV head \d, token \d+ of the step: -?[\d.e+]+ does not fit the KV cache; .*--kv-dtype float32"
    )
    assert re.search(words, answer.outputs[0].error or "")


def test_22_of_26_layers_of_gemma_3_1b_hold_a_window() -> None:
    """What docs/speed.md computes memory of."""
    groups = groups_of(outline(read_config(shape_config("gemma-3-1b"))).keeps)
    assert {group.keys.window: (len(group.layers), group.keys.k_dim) for group in groups} == {
        512: (22, 256),
        None: (4, 256),
    }
