"""Muse Glimmer's keys in config.json and GGUF files (karat.models.muse_glimmer_text is the family)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import AS_GGUF, has_bias, restated
from karat.checkpoint.weights import Weight
from karat.config import LayerShape, ModelConfig
from karat.errors import ConfigError
from karat.models import gemmas, window_patterns
from karat.models.reader import ConfigReader
from karat.request import shown

ARCH, THETA, POST_EPS, FACTOR = "muse-glimmer", 10_000.0, 1e-8, "qk_scale_factor"
DEFAULTS: Mapping[str, object] = {  # of the format: text_config may leave these keys out
    "vocab_size": 202_048,
    "hidden_size": 6656,
    "intermediate_size": 19968,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "post_norm_eps": POST_EPS,
    "bos_token_id": 200_000,
    "eos_token_id": 200_001,
    "sliding_window": 2048,
    "final_logit_softcapping": 20.0,
    "output_multiplier": 0.19611613513818404,
    FACTOR: 3.87,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MuseGlimmerConfig(ModelConfig):
    """Adds which layers have RoPE, the eps of norms after the parts, what q and logits are multiplied by, the cap of
    logits (0: none), biases, and how norms are stored."""

    has_rope: tuple[bool, ...]
    post_norm_eps: float
    qk_scale_factor: float
    output_multiplier: float
    final_logit_softcapping: float
    attention_bias: bool
    as_gguf: bool

    def shape(self, layer: int) -> LayerShape:
        usual = ModelConfig.shape(self, layer)
        return usual if self.has_rope[layer] else replace(usual, rope=None)


def read_own(reader: ConfigReader) -> dict[str, Any]:
    """The keys that only this family has, as fields, but for the layers that have RoPE."""
    reader.raw("hidden_act")  # hidden_activation counts
    return {
        "post_norm_eps": reader.get(float, "post_norm_eps"),
        FACTOR: reader.get(float, FACTOR),
        "output_multiplier": reader.get(float, "output_multiplier"),
        gemmas.FINAL_CAP: gemmas.read_cap(reader, gemmas.FINAL_CAP),
        "attention_bias": reader.get(bool, "attention_bias", False),
        "as_gguf": reader.get(bool, AS_GGUF, False),
    }


def has_rope(thetas: object, config: MuseGlimmerConfig) -> tuple[bool, ...]:
    """Where `layer_rope_theta` is not 0. transformers turns all such layers by the one base of rope_parameters."""
    allowed = (0, config.rope.theta)
    if not isinstance(thetas, list) or len(thetas) != config.num_layers or any(each not in allowed for each in thetas):
        raise ConfigError(
            f"layer_rope_theta={shown(thetas)}: expected 0 or rope_theta ({config.rope.theta:g}) for each of "
            f"{config.num_layers} layers"
        )
    return tuple(theta != 0 for theta in thetas)


def own_config(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    """Layers with a window are those that have RoPE."""
    own = window_patterns.own_config(metadata, ARCH)
    theta = metadata.get(float, f"{ARCH}.rope.freq_base", THETA)
    turned = [theta if kind == "sliding_attention" else 0 for kind in own["layer_types"]]
    return own | {
        "layer_rope_theta": turned,
        gemmas.FINAL_CAP: metadata.get(float, f"{ARCH}.{gemmas.FINAL_CAP}", 0.0),  # without the key there is none
        "attention_bias": has_bias(names, ".self_attn."),
        AS_GGUF: True,
    }


def as_stored(config: MuseGlimmerConfig, weight: Weight) -> Weight:
    """A weight as GGUF files have it: the four norms of a layer with the 1 added."""
    if config.as_gguf or not weight.name.endswith("layernorm.weight"):
        return weight
    return restated(weight, lambda values: values + np.float32(1))
