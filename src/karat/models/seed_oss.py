"""Seed-OSS (ByteDance, 2025): Llama's layers with explicit head_dim, biases on q, k and v, and none on o."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import IN_LAYER, GgufForm, has_bias
from karat.config import ModelConfig
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models.family import Family, read_decoder
from karat.models.reader import ConfigReader, read_layer_windows

_DEFAULT_HEAD_DIM = 128  # where a file lacks the key. null means hidden_size / num_attention_heads
_DEFAULT_KV_HEADS = 8  # likewise; null means one for each query head


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOssConfig(ModelConfig):
    """Adds whether q, k and v have biases, whether o has, and whether the MLP has."""

    attention_bias: bool
    attention_out_bias: bool
    mlp_bias: bool


def layer(place: Place, config: SeedOssConfig, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, shape = config.hidden_size, config.rms_norm_eps, config.shape(index)
    attention_norm = RMSNorm(place / "input_layernorm", size, eps)
    attention = Attention(
        place / "self_attn", size, shape, qkv_bias=config.attention_bias, o_bias=config.attention_out_bias
    )
    mlp_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    mlp = GatedMLP(place / "mlp", size, shape.inner_size, bias=config.mlp_bias)
    return Block(place.name, Branch(attention_norm, attention), Branch(mlp_norm, mlp))


def read(reader: ConfigReader) -> SeedOssConfig:
    """The configuration from a config.json of this family."""
    num_layers, num_heads = reader.get(int, "num_hidden_layers"), reader.get(int, "num_attention_heads")
    reader.raw("residual_dropout")  # of training
    states_heads, states_dim = reader.present("num_key_value_heads"), reader.present("head_dim")
    return read_decoder(
        reader,
        SeedOssConfig,
        layer_windows=read_layer_windows(reader, num_layers, None, ["full_attention"] * num_layers),
        num_kv_heads=reader.get(int, "num_key_value_heads", num_heads if states_heads else _DEFAULT_KV_HEADS),
        head_dim=reader.optional(int, "head_dim") if states_dim else _DEFAULT_HEAD_DIM,
        attention_bias=reader.get(bool, "attention_bias", True),
        attention_out_bias=reader.get(bool, "attention_out_bias", False),
        mlp_bias=reader.get(bool, "mlp_bias", False),
    )


def _own_config(_: Metadata, names: Collection[str]) -> dict[str, Any]:
    return {
        "attention_bias": has_bias(names, ".q_proj."),
        "attention_out_bias": has_bias(names, ".o_proj."),
        "mlp_bias": has_bias(names, ".mlp."),
    }


def _not_in_llama_cpp(config: SeedOssConfig) -> str | None:
    return "seed_oss with biases on o or in its MLP" if config.attention_out_bias or config.mlp_bias else None


GGUF: GgufForm[SeedOssConfig] = GgufForm(
    architecture="seed_oss",
    in_layer={
        **{stored: name for stored, name in IN_LAYER.items() if stored != "ffn_norm"},
        "post_attention_norm": "post_attention_layernorm",
    },
    own_config=_own_config,
    not_in_llama_cpp=_not_in_llama_cpp,
)
FAMILY = Family("seed_oss", "SeedOssForCausalLM", read, layer, GGUF)
