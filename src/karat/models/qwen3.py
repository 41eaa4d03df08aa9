"""Qwen3 (arXiv 2505.09388): per-head RMSNorm of q and k before RoPE, explicit head_dim, optional biases."""

from dataclasses import dataclass

from karat.checkpoint.gguf.form import IN_LAYER, GgufForm, has_bias
from karat.config import ModelConfig
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models.family import Family, read_decoder
from karat.models.qwen2 import read_windows
from karat.models.reader import ConfigReader, read_num_kv_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3Config(ModelConfig):
    """Adds whether q, k, v and o have biases."""

    attention_bias: bool


def layer(place: Place, config: Qwen3Config, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, bias, shape = config.hidden_size, config.rms_norm_eps, config.attention_bias, config.shape(index)
    attention_norm = RMSNorm(place / "input_layernorm", size, eps)
    attention = Attention(place / "self_attn", size, shape, qkv_bias=bias, o_bias=bias, qk_norm_eps=eps)
    mlp_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    mlp = GatedMLP(place / "mlp", size, shape.inner_size)
    return Block(place.name, Branch(attention_norm, attention), Branch(mlp_norm, mlp))


def read(reader: ConfigReader) -> Qwen3Config:
    """The configuration from a config.json of this family."""
    must_normalise(reader)
    return read_decoder(
        reader,
        Qwen3Config,
        layer_windows=read_windows(reader),
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=reader.get(int, "head_dim"),
        attention_bias=reader.get(bool, "attention_bias", False),
    )


def must_normalise(reader: ConfigReader) -> None:
    """Raise ConfigError for a file that says that q and k are not normalised."""
    for key in ("use_qk_norm", "qk_norm", "qk_layernorm"):
        reader.must_be(key, True, why="models of this type normalise q and k")


GGUF: GgufForm[Qwen3Config] = GgufForm(
    architecture="qwen3",
    in_layer={**IN_LAYER, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"},
    own_config=lambda _, names: {"attention_bias": has_bias(names, ".self_attn.")},
    not_in_llama_cpp=lambda config: "qwen3 with biases in its attention" if config.attention_bias else None,
)
FAMILY = Family("qwen3", "Qwen3ForCausalLM", read, layer, GGUF)
