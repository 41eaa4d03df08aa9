"""Gemma 3 of 4B and more: the text part of its config.json leaves most keys out, and a vision encoder is set aside."""

import numpy as np
import pytest

from karat.checkpoint.unused import VISION
from karat.errors import ConfigError
from karat.models.families import COMPOSITES
from karat.models.registry import read_config
from tests.support.weights import weight_of

WHOLE = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}
NAMES = (
    "vision_tower.vision_model.post_layernorm.weight",
    "multi_modal_projector.mm_soft_emb_norm.weight",
    "language_model.model.norm.weight",
)


def test_the_text_part_has_the_defaults_of_its_format() -> None:
    weights = {name: weight_of(np.ones(2, np.float32), "F32", name) for name in NAMES}
    part = COMPOSITES["gemma3"].text_part(WHOLE, weights)
    config = read_config(part.config)
    sizes = (config.vocab_size, config.num_heads, config.num_kv_heads, config.head_dim)
    assert sizes == (262_208, 8, 4, 256)
    assert (config.max_position_embeddings, config.tie_word_embeddings) == (131_072, True)
    assert (config.bos_token_id, config.eos_token_ids) == (2, (1, 106))
    assert [layer for layer, shape in enumerate(config.shapes) if shape.window is None] == [5, 11, 17, 23, 29]
    ropes = [(shape.rope.rope_type, shape.rope.theta) for shape in config.shapes[4:6] if shape.rope is not None]
    assert ropes == [("default", 10_000.0), ("linear", 1_000_000.0)]
    assert set(part.weights) == {"model.norm.weight"}
    assert {each: len(found) for each, found in part.unused.items()} == {VISION: 2}


def test_another_text_model_in_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="Karat has gemma3_text there"):
        COMPOSITES["gemma3"].text_part({**WHOLE, "text_config": {"model_type": "gemma2"}}, {})
