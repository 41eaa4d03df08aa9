"""Ministral 3 and Devstral 2 (Mistral, 2025): Mistral's layers with yarn, in which q grows with the position."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import IN_LAYER, GgufForm
from karat.config import LayerShape
from karat.errors import ConfigError
from karat.models.family import Family, read_decoder
from karat.models.mistral import MistralConfig, layer
from karat.models.reader import ConfigReader, read_layer_windows, read_window

_KV_HEADS, _HEAD_DIM = 8, 128  # where a file lacks the keys; null means one KV head a head, and hidden_size / heads
_GROWTH = "llama_4_scaling_beta"
_THETA = 1_000_000.0
_ROPE: Mapping[str, object] = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    _GROWTH: 0.1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ministral3Config(MistralConfig):
    """Adds how much q grows with the position (`LayerShape.growth`)."""

    llama_4_scaling_beta: float

    def shape(self, layer: int) -> LayerShape:
        return replace(MistralConfig.shape(self, layer), growth=self.llama_4_scaling_beta)


def read(reader: ConfigReader) -> Ministral3Config:
    """The configuration from a config.json of this family."""
    num_layers, num_heads = reader.get(int, "num_hidden_layers"), reader.get(int, "num_attention_heads")
    window = read_window(reader)
    everywhere = "full_attention" if window is None else "sliding_attention"
    reader.must_be("layer_types", [everywhere] * num_layers, why="ministral3 has its window on all layers or none")
    return read_decoder(
        reader,
        Ministral3Config,
        layer_windows=read_layer_windows(reader, num_layers, window, [everywhere] * num_layers),
        num_kv_heads=reader.get(
            int, "num_key_value_heads", num_heads if reader.present("num_key_value_heads") else _KV_HEADS
        ),
        head_dim=reader.optional(int, "head_dim") if reader.present("head_dim") else _HEAD_DIM,
        default_theta=_THETA,
        default_rope=_ROPE,
        rope_keys=(_GROWTH, "max_position_embeddings"),
        llama_4_scaling_beta=_read_growth(reader),
    )


def _read_growth(reader: ConfigReader) -> float:
    """From RoPE's parameters, where config.json has it, or beside them, where a GGUF file's has it."""
    stated, outer = reader.raw("rope_parameters") or reader.raw("rope_scaling"), reader.optional(float, _GROWTH)
    inner = ConfigReader(stated if isinstance(stated, dict) else _ROPE, "rope_parameters").get(float, _GROWTH, outer)
    if outer is not None and isinstance(stated, dict) and inner != outer:
        raise ConfigError(f"{_GROWTH}={outer} and rope_parameters.{_GROWTH}={inner} disagree")
    return inner


def _own_config(metadata: Metadata, _: Collection[str]) -> dict[str, Any]:
    """Files of Mistral Small 3.1 and 3.2 have no growth."""
    return {_GROWTH: metadata.get(float, "mistral3.attention.temperature_scale", 0.0)}


GGUF: GgufForm[Ministral3Config] = GgufForm(
    architecture="mistral3",
    in_layer=IN_LAYER,
    paired=("self_attn.q_proj", "self_attn.k_proj"),
    unscaled={"rope_type": "default"},
    numbers={"attention.temperature_scale": _GROWTH},
    own_config=_own_config,
)
FAMILY = Family("ministral3", "Ministral3ForCausalLM", read, layer, GGUF)
