"""Gemma 4: what stands beside the text model, K and V that nothing reads, and a table that stays in its file.

Covers: karat.layers.layer_inputs, karat.models.gemma4_files, karat.models.gemma4_unified.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from karat import LLM
from karat.checkpoint.unused import AUDIO, SHARED_KEYS, VISION
from karat.checkpoint.weights import Weight
from karat.kv.groups import SharedKeys
from karat.models.decoder import outline, weight_specs
from karat.models.families import COMPOSITES
from karat.models.opening import open_model
from karat.models.registry import build, read_config
from karat.ops.native import unavailable_reason
from karat.ops.reference import MappedTable, ReferenceOps
from karat.request import SamplingParams
from tests.convert.folders import FAMILIES, folder_of
from tests.support.weights import weight_of

E2B: dict[str, Any] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "audio_config": {"model_type": "gemma4_audio"},
    "audio_token_id": 258881,
    "boa_token_id": 256000,
    "boi_token_id": 255999,
    "dtype": "bfloat16",
    "eoa_token_index": 258883,
    "eoi_token_id": 258882,
    "eos_token_id": [1, 106, 50],
    "image_token_id": 258880,
    "initializer_range": 0.02,
    "model_type": "gemma4",
    "text_config": {
        "enable_moe_block": False,
        "final_logit_softcapping": 30.0,
        "global_head_dim": 512,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1536,
        "hidden_size_per_layer_input": 256,
        "intermediate_size": 6144,
        "layer_types": [*(["sliding_attention"] * 4), "full_attention"] * 7,
        "model_type": "gemma4_text",
        "num_attention_heads": 8,
        "num_hidden_layers": 35,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 20,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 512,
        "use_double_wide_mlp": True,
    },
    "tie_word_embeddings": True,
    "transformers_version": "5.5.0",
    "video_token_id": 258884,
    "vision_config": {"model_type": "gemma4_vision"},
}
NAMES = (
    "model.vision_tower.patch_embedder.input_proj.weight",
    "model.embed_vision.embedding_projection.weight",
    "model.audio_tower.layers.0.norm_out.weight",
    "model.embed_audio.embedding_projection.weight",
    "model.language_model.norm.weight",
)
SHARING = FAMILIES["gemma4_text with layers that read earlier ones"]


def test_the_text_of_e2b() -> None:
    weights = {name: weight_of(np.ones(2, np.float32), "F32", name) for name in NAMES}
    part = COMPOSITES["gemma4"].text_part(E2B, weights)
    config = read_config(part.config)
    assert (config.vocab_size, config.eos_token_ids, config.tie_word_embeddings) == (262_144, (1, 106, 50), True)
    assert [shape.inner_size for shape in config.shapes] == [6144] * 15 + [12288] * 20
    assert [shape.head_dim for shape in config.shapes[:5]] == [256] * 4 + [512]
    keeps = outline(config).keeps
    assert keeps[15:20] == (*[SharedKeys(13)] * 4, SharedKeys(14)), "the last of each kind that keep some"
    assert not any(isinstance(keep, SharedKeys) for keep in keeps[:15])
    assert {each: len(found) for each, found in part.unused.items()} == {VISION: 2, AUDIO: 2}
    (table,) = (spec for spec in weight_specs(config) if spec.source == "model.embed_tokens_per_layer.weight")
    assert table.gathered and table.shape == (262_144, 35 * 256)


def test_the_text_of_12b() -> None:
    of_text = {"model_type": "gemma4_unified_text", "attention_k_eq_v": True, "num_global_key_value_heads": 1}
    whole = {"model_type": "gemma4_unified", "text_config": of_text, "audio_config": {}, "vision_config": {}}
    part = COMPOSITES["gemma4_unified"].text_part(whole, {})
    shapes = read_config(part.config).shapes
    assert [shape.window for shape in shapes[:6]] == [*[1024] * 5, None]
    assert [shape.num_kv_heads for shape in shapes[:6]] == [*[4] * 5, 1]


def test_keys_that_nothing_reads_are_set_aside(tmp_path: Path) -> None:
    """Releases have K and V of layers that read an earlier layer's; so has a GGUF file that was made of one."""
    folder = folder_of(tmp_path / "model", **SHARING)
    checkpoint = open_model(folder)
    tensors = {name: weight.to_array(np.dtype(np.float32)) for name, weight in checkpoint.weights.items()}
    extra = {f"model.layers.4.self_attn.{part}.weight": np.ones((4, 4), np.float32) for part in ("k_proj", "k_norm")}
    save_file({**tensors, **extra}, folder / "model.safetensors")
    opened = open_model(folder)
    assert {part: len(found) for part, found in opened.unused.items()} == {SHARED_KEYS: 2}
    assert opened.weights.keys() == checkpoint.weights.keys()


class Watched(ReferenceOps):
    """Notes which tables stay in their files."""

    def __init__(self) -> None:
        super().__init__("float32")
        self.mapped: list[str] = []

    def load_mapped(self, weight: Weight) -> MappedTable:
        self.mapped.append(weight.name)
        return super().load_mapped(weight)


def test_the_table_of_layers_inputs_stays_in_its_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", **{**SHARING, "tie_word_embeddings": True})
    checkpoint = open_model(folder)
    ops = Watched()
    model = build(read_config(checkpoint.config), ops, checkpoint, num_positions=16)
    assert ops.mapped == ["model.embed_tokens_per_layer.weight"]
    assert isinstance(next(held for spec, held in model.parts.items() if spec.source == ops.mapped[0]), MappedTable)


@pytest.mark.skipif(bool(unavailable_reason()), reason="no native executor")
def test_the_cache_is_float16_and_a_value_beyond_it_is_named(tmp_path: Path) -> None:
    """V is normalised and fits; K of this model does not, for its norm multiplies by 10 million."""
    folder, params = folder_of(tmp_path / "model", **FAMILIES["gemma4_unified_text"]), SamplingParams(max_tokens=4)
    with LLM(folder) as llm:
        assert llm.kv_dtype == "float16"
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.self_attn.k_norm.weight"] *= np.float32(1e7)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with LLM(folder) as llm:
        (answer,) = llm.generate(["Once upon a time"], params)
    named = "K of layer 1, KV head "
    assert named in (answer.outputs[0].error or "") and "--kv-dtype float32" in (answer.outputs[0].error or "")
