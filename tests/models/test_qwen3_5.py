"""Qwen3.5 as it is released: the text model of a folder with vision and multi-token prediction, in one spelling only.

Covers: karat.models.qwen3_5_moe, karat.models.qwen3_5_moe_text, karat.models.qwen3_5_text, karat.models.qwen3_next.
"""

import random
from typing import Any

import numpy as np
import pytest

from karat.checkpoint.unused import PREDICTION, VISION
from karat.errors import CheckpointError, ConfigError
from karat.models.qwen3_5 import COMPOSITE
from karat.models.registry import find_weights, read_config
from tests.models.test_config import raw_config
from tests.support.forward import ArrayCheckpoint

pytest.importorskip("torch", reason="transformers needs torch")
from tests.support import random_models


def released() -> tuple[dict[str, Any], dict[str, np.ndarray[Any, np.dtype[np.float32]]]]:
    """config.json and the tensors of a small folder like those of the hub."""
    raw = random_models.draw_config(random.Random(5), "qwen3_5_text", "default") | {"tie_word_embeddings": True}
    hf = random_models.build(raw, 5)
    tensors = {name: each.numpy() for name, each in hf.state_dict().items() if name != "lm_head.weight"}
    tensors = {name.replace("model.", "model.language_model.", 1): each for name, each in tensors.items()}
    other = np.zeros((4, 4), np.float32)
    tensors |= {"model.visual.patch_embed.proj.weight": other, "mtp.fc.weight": other}
    text = {key: value for key, value in raw.items() if key not in ("architectures", "tie_word_embeddings")}
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "image_token_id": 7,
        "model_type": "qwen3_5",
        "text_config": text | {"mtp_num_hidden_layers": 1, "mamba_ssm_dtype": "float32", "attn_output_gate": True},
        "tie_word_embeddings": True,
        "video_token_id": 8,
        "vision_config": {"depth": 2},
        "vision_end_token_id": 9,
        "vision_start_token_id": 10,
    }
    return config, tensors


def test_the_text_of_a_folder_is_read_and_the_rest_is_declared_unused() -> None:
    config, tensors = released()
    part = COMPOSITE.text_part(config, ArrayCheckpoint(tensors).weights)
    assert {other: len(weights) for other, weights in part.unused.items()} == {VISION: 1, PREDICTION: 1}
    assert find_weights(read_config(part.config), _held(part.weights)).keys() == part.weights.keys()


def _held(weights: Any) -> ArrayCheckpoint:
    checkpoint = ArrayCheckpoint({})
    checkpoint.weights = dict(weights)
    return checkpoint


def test_filters_as_mlx_stores_them_are_refused() -> None:
    """MLX has the taps before the axis of one; the norms of such a folder hold 1 + weight, which no name says."""
    config, tensors = released()
    turned = {name: each.swapaxes(1, 2) if name.endswith("conv1d.weight") else each for name, each in tensors.items()}
    part = COMPOSITE.text_part(config, ArrayCheckpoint(turned).weights)
    with pytest.raises(CheckpointError, match=r"conv1d.weight is \[\d+, \d+, 1\] in .*, expected \[\d+, 1, \d+\] or"):
        find_weights(read_config(part.config), _held(part.weights))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_num_value_heads": 3}, "no multiple of linear_num_key_heads=2"),
        ({"linear_conv_kernel_dim": 1}, "2 taps or more"),
        ({"attn_output_gate": False}, "has a gate"),
        ({"output_gate_type": "sigmoid"}, "a gate with silu"),
        ({"mamba_ssm_dtype": "bfloat16"}, "states are float32"),
        ({"attention_bias": True}, "without biases"),
        ({"layer_types": ["sliding_attention"] * 4}, "expected linear_attention or full_attention"),
        ({"full_attention_interval": 0}, "expected at least 1"),
        ({"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}}, "disagree"),
        ({"partial_rotary_factor": 2.0}, "numbers of a head are turned"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(raw_config("qwen3_5_text", **changes))
