"""Llama 2, 3, 3.1, 3.2 (arXiv 2307.09288, 2407.21783): optional biases, no window, llama3 RoPE scaling since 3.1."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import IN_LAYER, GgufForm, has_bias, has_experts, stated_window
from karat.config import ModelConfig
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models.family import Family, read_decoder
from karat.models.reader import ConfigReader, read_layer_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """Adds whether q, k, v and o have biases, and whether the MLP has."""

    attention_bias: bool
    mlp_bias: bool


def layer(place: Place, config: LlamaConfig, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, bias, shape = config.hidden_size, config.rms_norm_eps, config.attention_bias, config.shape(index)
    attention_norm = RMSNorm(place / "input_layernorm", size, eps)
    attention = Attention(place / "self_attn", size, shape, qkv_bias=bias, o_bias=bias)
    mlp_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    mlp = GatedMLP(place / "mlp", size, shape.inner_size, bias=config.mlp_bias)
    return Block(place.name, Branch(attention_norm, attention), Branch(mlp_norm, mlp))


def read(reader: ConfigReader) -> LlamaConfig:
    """The configuration from a config.json of this family."""
    num_layers, num_heads = reader.get(int, "num_hidden_layers"), reader.get(int, "num_attention_heads")
    reader.must_be("sliding_window", 0, why="the llama architecture has no window")
    return read_decoder(
        reader,
        LlamaConfig,
        layer_windows=read_layer_windows(reader, num_layers, None, ["full_attention"] * num_layers),
        num_kv_heads=reader.get(int, "num_key_value_heads", num_heads),
        head_dim=reader.optional(int, "head_dim"),
        attention_bias=reader.get(bool, "attention_bias", False),
        mlp_bias=reader.get(bool, "mlp_bias", False),
    )


def _own_config(_: Metadata, names: Collection[str]) -> dict[str, Any]:
    """The biases of a GGUF file. With biases on q, k and v alone, which only qwen2 has, it is computed as qwen2."""
    has_attention, has_mlp = has_bias(names, ".self_attn."), has_bias(names, ".mlp.")
    if has_attention and not has_mlp and not has_bias(names, ".o_proj."):
        return {"model_type": "qwen2"}
    return {"attention_bias": has_attention, "mlp_bias": has_mlp}


GGUF: GgufForm[LlamaConfig] = GgufForm(
    architecture="llama",
    in_layer=IN_LAYER,
    paired=("self_attn.q_proj", "self_attn.k_proj"),
    # With a window it is Mistral's, with experts Mixtral's.
    claims=lambda metadata: not stated_window(metadata, "llama") and not has_experts(metadata, "llama"),
    own_config=_own_config,
    finer_values=lambda config: config.num_layers == 80 and config.num_heads != config.num_kv_heads,
)
FAMILY = Family("llama", "LlamaForCausalLM", read, layer, GGUF)
