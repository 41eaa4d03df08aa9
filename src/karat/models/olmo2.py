"""OLMo 2 (arXiv 2501.00656): RMSNorm after attention and MLP, not before, and of all heads of q and of k together."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Olmo2Config(ModelConfig):
    """Adds whether q, k, v and o have biases."""

    norms_all_heads: ClassVar[bool] = True
    attention_bias: bool


def layer(place: Place, config: Olmo2Config, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, bias, shape = config.hidden_size, config.rms_norm_eps, config.attention_bias, config.shape(index)
    attention = Attention(
        place / "self_attn",
        size,
        shape,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm_eps=eps,
        norms_all_heads=config.norms_all_heads,
    )
    attention_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    mlp = GatedMLP(place / "mlp", size, shape.inner_size)
    mlp_norm = RMSNorm(place / "post_feedforward_layernorm", size, eps)
    return Block(place.name, Branch(None, attention, attention_norm), Branch(None, mlp, mlp_norm))


def read(reader: ConfigReader) -> Olmo2Config:
    """The configuration from a config.json of this family."""
    num_layers, num_heads = reader.get(int, "num_hidden_layers"), reader.get(int, "num_attention_heads")
    reader.must_be("clip_qkv", why="q, k and v are not clipped")
    reader.must_be("sliding_window", 0, why="models of this type have no window")
    return read_decoder(
        reader,
        Olmo2Config,
        layer_windows=read_layer_windows(reader, num_layers, None, ["full_attention"] * num_layers),
        num_kv_heads=reader.get(int, "num_key_value_heads", num_heads),
        head_dim=reader.optional(int, "head_dim"),
        attention_bias=reader.get(bool, "attention_bias", False),
    )


def _own_config(_: Metadata, names: Collection[str]) -> dict[str, Any]:
    return {"attention_bias": has_bias(names, ".self_attn.")}


_BEFORE = ("attn_norm", "ffn_norm")
TENSORS: Mapping[str, str] = {
    **{stored: name for stored, name in IN_LAYER.items() if stored not in _BEFORE},
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

GGUF: GgufForm[Olmo2Config] = GgufForm(
    architecture="olmo2",
    in_layer=TENSORS,
    claims=lambda metadata: not metadata.get(int, "olmo2.attention.sliding_window", 0),  # else it is OLMo 3
    own_config=_own_config,
    not_in_llama_cpp=lambda config: "olmo2 with biases in its attention" if config.attention_bias else None,
)
FAMILY = Family("olmo2", "Olmo2ForCausalLM", read, layer, GGUF)
