"""OLMoE (arXiv 2409.02060): all MLPs are mixtures, and RMSNorm of all heads of q and of k together before RoPE."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import IN_LAYER, STACKED_EXPERTS, GgufForm, has_bias
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models import mixtures
from karat.models.family import Family, read_decoder
from karat.models.mixtures import MixtureConfig
from karat.models.reader import ConfigReader, read_layer_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class OlmoeConfig(MixtureConfig):
    """Adds whether q, k, v and o have biases."""

    norms_all_heads: ClassVar[bool] = True
    attention_bias: bool


def layer(place: Place, config: OlmoeConfig, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, bias, shape = config.hidden_size, config.rms_norm_eps, config.attention_bias, config.shape(index)
    attention_norm = RMSNorm(place / "input_layernorm", size, eps)
    attention = Attention(
        place / "self_attn",
        size,
        shape,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm_eps=eps,
        norms_all_heads=config.norms_all_heads,
    )
    mlp_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    mlp = mixtures.mixture(place / "mlp", config)
    return Block(place.name, Branch(attention_norm, attention), Branch(mlp_norm, mlp))


def read(reader: ConfigReader) -> OlmoeConfig:
    """The configuration from a config.json of this family. An expert has the intermediate_size."""
    num_layers, num_heads = reader.get(int, "num_hidden_layers"), reader.get(int, "num_attention_heads")
    reader.must_be("clip_qkv", why="q, k and v are not clipped")
    reader.must_be("sliding_window", 0, why="models of this type have no window")
    return read_decoder(
        reader,
        OlmoeConfig,
        layer_windows=read_layer_windows(reader, num_layers, None, ["full_attention"] * num_layers),
        num_kv_heads=reader.get(int, "num_key_value_heads", num_heads),
        head_dim=reader.optional(int, "head_dim"),
        attention_bias=reader.get(bool, "attention_bias", False),
        **mixtures.read_experts(reader),
        moe_intermediate_size=reader.get(int, "intermediate_size"),
        norm_topk_prob=reader.get(bool, "norm_topk_prob", False),
    )


def _own_config(_: Metadata, names: Collection[str]) -> dict[str, Any]:
    return {"attention_bias": has_bias(names, ".self_attn."), "norm_topk_prob": False}


def _not_in_llama_cpp(config: OlmoeConfig) -> str | None:
    if config.num_kv_heads * config.head_dim != config.hidden_size:
        return "olmoe whose KV heads do not fill the hidden size"
    return "olmoe with biases in its attention" if config.attention_bias else None


GGUF: GgufForm[OlmoeConfig] = GgufForm(
    architecture="olmoe",
    in_layer={
        **IN_LAYER,
        **STACKED_EXPERTS,
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_gate_inp": "mlp.gate",
    },
    counts=mixtures.COUNTS,
    own_config=_own_config,
    not_in_gguf=lambda config: mixtures.not_in_gguf(config, renormalised=False),
    not_in_llama_cpp=_not_in_llama_cpp,
)
FAMILY = Family("olmoe", "OlmoeForCausalLM", read, layer, GGUF)
