"""What families with short convolutions refuse, and the names of their tensors."""

from typing import Any

import numpy as np
import pytest

from karat.errors import CheckpointError, ConfigError
from karat.models.decoder import weight_specs
from karat.models.registry import find_weights, read_config
from tests.models.test_config import raw_config
from tests.support.forward import ArrayCheckpoint
from tests.support.parallel import hub_name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv_L_cache": 1}, "2 taps or more"),
        ({"conv_dim": 64}, "as wide as the model, whose hidden_size is 32"),
        ({"block_dim": 64}, "MLPs read the hidden_size, 32"),
        ({"block_norm_eps": 1e-3}, "the norms before MLPs have norm_eps, too"),
        ({"block_use_swiglu": False}, "have a gate"),
        ({"num_heads": 7}, "num_attention_heads=4"),
        ({"use_pos_enc": False}, "has RoPE"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False and tie_embedding=True disagree"),
        ({"full_attn_idxs": "1"}, "expected a list of layers"),
        ({"layer_types": ["conv"]}, "a list of 4 types"),
        ({"layer_types": ["linear_attention"] * 4}, "expected conv or full_attention"),
        ({"block_multiple_of": 0}, "expected at least 1"),
        ({"rms_norm_eps": 1e-6}, "unknown key"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(raw_config("lfm2", **changes))


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 32),  # two thirds of 48
        ({"block_ff_dim": 100}, 80),  # 66, up to a multiple of 16
        ({"block_ffn_dim_multiplier": 1.3}, 48),  # 41
        ({"block_ffn_dim_multiplier": None, "block_ff_dim": 50}, 33),
        ({"block_auto_adjust_ff_dim": False}, 48),
    ],
)
def test_the_size_of_mlps_is_adjusted(changes: dict[str, Any], size: int) -> None:
    assert read_config(raw_config("lfm2", **changes)).intermediate_size == size


def test_the_head_is_the_embedding_unless_it_is_said() -> None:
    nothing = {"tie_word_embeddings": ..., "tie_embedding": ...}
    for changes, tied in ((nothing, True), ({**nothing, "tie_embedding": False}, False)):
        assert read_config(raw_config("lfm2", **changes)).tie_word_embeddings == tied


def tensors(**changes: Any) -> tuple[Any, dict[str, Any]]:
    config = read_config(raw_config("lfm2", **changes))
    shapes = {spec.source: (spec.stored or (spec.shape,))[0] for spec in weight_specs(config)}
    return config, {hub_name("lfm2", name): np.zeros(shape, np.float32) for name, shape in shapes.items()}


def test_tensors_have_the_names_of_the_hub() -> None:
    config, found = tensors()
    assert {name.split(".", 3)[-1] for name in found if ".layers.0." in name} == {
        "conv.conv.weight",
        "conv.in_proj.weight",
        "conv.out_proj.weight",
        "feed_forward.w1.weight",
        "feed_forward.w2.weight",
        "feed_forward.w3.weight",
        "ffn_norm.weight",
        "operator_norm.weight",
    }
    assert "model.embedding_norm.weight" in found and "model.layers.1.self_attn.q_layernorm.weight" in found
    find_weights(config, ArrayCheckpoint(found))


def test_two_tensors_for_one_part_are_refused() -> None:
    config, found = tensors()
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        find_weights(config, ArrayCheckpoint(found | {"model.norm.weight": found["model.embedding_norm.weight"]}))


def test_filters_as_mlx_stores_them_are_refused() -> None:
    config, found = tensors()
    turned = {name: each.swapaxes(1, 2) if "conv.conv" in name else each for name, each in found.items()}
    with pytest.raises(CheckpointError, match=r"conv\.conv\.weight is \[32, 3, 1\] in .*, expected \[32, 1, 3\] or"):
        find_weights(config, ArrayCheckpoint(turned))
