"""Mistral (arXiv 2310.06825): a sliding window on every layer (null in later releases), explicit head_dim."""

from dataclasses import dataclass

from karat.config import ModelConfig
from karat.layers.attention import Attention
from karat.layers.block import PreNormBlock
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models.family import Family, read_decoder
from karat.models.reader import ConfigReader, read_layer_windows

_DEFAULT_WINDOW = 4096  # of the architecture, for a file that does not have the key; null means none


@dataclass(frozen=True, slots=True, kw_only=True)
class MistralConfig(ModelConfig):
    """Nothing beyond what all have."""


def layer(place: Place, config: MistralConfig, index: int) -> PreNormBlock:
    """One layer."""
    size, eps, window = config.hidden_size, config.rms_norm_eps, config.layer_windows[index]
    return PreNormBlock(
        place.name,
        RMSNorm(place / "input_layernorm", size, eps),
        Attention(place / "self_attn", config, index, rope=config.rope, window=window),
        RMSNorm(place / "post_attention_layernorm", size, eps),
        GatedMLP(place / "mlp", size, config.intermediate_size),
    )


def read(reader: ConfigReader) -> MistralConfig:
    """A config.json of this family."""
    num_layers = reader.get(int, "num_hidden_layers")
    window = reader.optional(int, "sliding_window") if reader.present("sliding_window") else _DEFAULT_WINDOW
    everywhere = "full_attention" if window is None else "sliding_attention"
    reader.must_be("layer_types", None, [everywhere] * num_layers, why="mistral has its window on all layers or none")
    reader.must_be("attention_bias", None, False, why="the mistral architecture has no biases")
    return read_decoder(
        reader,
        MistralConfig,
        layer_windows=read_layer_windows(reader, num_layers, window, [everywhere] * num_layers),
        num_kv_heads=reader.get(int, "num_key_value_heads"),
        head_dim=reader.optional(int, "head_dim"),
    )


FAMILY = Family("mistral", "MistralForCausalLM", read, layer)
