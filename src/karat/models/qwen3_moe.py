"""Qwen3 with experts (arXiv 2505.09388, Qwen3-30B-A3B, Qwen3-Coder): Qwen3 whose MLPs are mixtures, in most layers."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import IN_LAYER, STACKED_EXPERTS, GgufForm, has_bias
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.mixer import Mixer
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models import mixtures
from karat.models.family import Family, read_decoder
from karat.models.mixtures import MixtureConfig
from karat.models.qwen3 import must_normalise
from karat.models.reader import ConfigReader, read_layer_windows, read_num_kv_heads, read_window

_DEFAULT_WINDOW = 4096  # tokens; the architecture's default where a file lacks the key. null means no window


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3MoeConfig(MixtureConfig):
    """Adds whether q, k, v and o have biases."""

    attention_bias: bool


def layer(place: Place, config: Qwen3MoeConfig, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, bias, shape = config.hidden_size, config.rms_norm_eps, config.attention_bias, config.shape(index)
    attention_norm = RMSNorm(place / "input_layernorm", size, eps)
    attention = Attention(place / "self_attn", size, shape, qkv_bias=bias, o_bias=bias, qk_norm_eps=eps)
    mlp_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    at, is_dense = place / "mlp", index in config.dense_layers
    mlp: Mixer = GatedMLP(at, size, shape.inner_size) if is_dense else mixtures.mixture(at, config)
    return Block(place.name, Branch(attention_norm, attention), Branch(mlp_norm, mlp))


def read(reader: ConfigReader) -> Qwen3MoeConfig:
    """The configuration from a config.json of this family."""
    must_normalise(reader)
    return read_decoder(
        reader,
        Qwen3MoeConfig,
        layer_windows=_read_windows(reader),
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=reader.optional(int, "head_dim"),
        attention_bias=reader.get(bool, "attention_bias", False),
        **mixtures.read_experts(reader),
        moe_intermediate_size=reader.get(int, "moe_intermediate_size"),
        norm_topk_prob=reader.get(bool, "norm_topk_prob", False),
        dense_layers=mixtures.read_dense_layers(reader),
    )


def _read_windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """With use_sliding_window, all layers have the window."""
    num_layers = reader.get(int, "num_hidden_layers")
    window = read_window(reader, _DEFAULT_WINDOW)
    reader.raw("max_window_layers")  # of Qwen2; nothing reads it
    if not reader.get(bool, "use_sliding_window", False):
        window = None
    kind = "full_attention" if window is None else "sliding_attention"
    return read_layer_windows(reader, num_layers, window, [kind] * num_layers)


def _own_config(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    return {
        "attention_bias": has_bias(names, ".self_attn."),
        "norm_topk_prob": True,
        **mixtures.size_in_old_files(metadata, "qwen3moe"),
    }


GGUF: GgufForm[Qwen3MoeConfig] = GgufForm(
    architecture="qwen3moe",
    in_layer={
        **IN_LAYER,
        **STACKED_EXPERTS,
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_gate_inp": "mlp.gate",
    },
    counts=mixtures.COUNTS | mixtures.SIZE,
    own_config=_own_config,
    not_in_gguf=lambda config: mixtures.not_in_gguf(config, renormalised=True),
    not_in_llama_cpp=lambda config: "qwen3moe with biases in its attention" if config.attention_bias else None,
)
FAMILY = Family("qwen3_moe", "Qwen3MoeForCausalLM", read, layer, GGUF)
