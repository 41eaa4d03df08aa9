"""Qwen2 with experts (Qwen1.5-MoE, Qwen2-57B-A14B): most MLPs are mixtures beside an MLP that all tokens share."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import IN_LAYER, SHARED_EXPERT, STACKED_EXPERTS, GgufForm, has_bias
from karat.errors import ConfigError
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.mixer import Mixer
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models import mixtures
from karat.models.family import Family, read_decoder
from karat.models.mixtures import MixtureConfig
from karat.models.reader import ConfigReader, read_layer_windows, read_num_kv_heads, read_window

_DEFAULT_WINDOW = 4096  # tokens; the architecture's default where a file lacks the key. null means no window
_DEFAULT_DEPTH = 28  # likewise of max_window_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2MoeConfig(MixtureConfig):
    """Adds the size of the shared expert, and whether q, k and v have biases."""

    shared_expert_intermediate_size: int
    qkv_bias: bool

    def __post_init__(self) -> None:
        if (size := self.shared_expert_intermediate_size) < 1:
            raise ConfigError(f"shared_expert_intermediate_size={size}: expected a positive integer")
        MixtureConfig.__post_init__(self)


def layer(place: Place, config: Qwen2MoeConfig, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, shape = config.hidden_size, config.rms_norm_eps, config.shape(index)
    attention_norm = RMSNorm(place / "input_layernorm", size, eps)
    attention = Attention(place / "self_attn", size, shape, qkv_bias=config.qkv_bias)
    mlp_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    return Block(place.name, Branch(attention_norm, attention), Branch(mlp_norm, _mlp(place / "mlp", config, index)))


def _mlp(place: Place, config: Qwen2MoeConfig, index: int) -> Mixer:
    size = config.hidden_size
    if index in config.dense_layers:
        return GatedMLP(place, size, config.intermediate_size)
    return mixtures.shared_mixture(place, config, config.shared_expert_intermediate_size)


def read(reader: ConfigReader) -> Qwen2MoeConfig:
    """The configuration from a config.json of this family."""
    return read_decoder(
        reader,
        Qwen2MoeConfig,
        layer_windows=_read_windows(reader),
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=reader.optional(int, "head_dim"),
        qkv_bias=reader.get(bool, "qkv_bias", True),
        **mixtures.read_experts(reader),
        moe_intermediate_size=reader.get(int, "moe_intermediate_size"),
        shared_expert_intermediate_size=reader.get(int, "shared_expert_intermediate_size"),
        norm_topk_prob=reader.get(bool, "norm_topk_prob", False),
        dense_layers=mixtures.read_dense_layers(reader),
    )


def _read_windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """With use_sliding_window, layers 0, 2, 4 … below max_window_layers have the window."""
    num_layers = reader.get(int, "num_hidden_layers")
    window = read_window(reader, _DEFAULT_WINDOW)
    depth = reader.get(int, "max_window_layers", _DEFAULT_DEPTH)
    if not reader.get(bool, "use_sliding_window", False):
        window = None
    has = [window is not None and index % 2 == 0 and index < depth for index in range(num_layers)]
    types = ["sliding_attention" if each else "full_attention" for each in has]
    return read_layer_windows(reader, num_layers, window, types)


def _own_config(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    return {"qkv_bias": has_bias(names, ".q_proj."), "norm_topk_prob": False}


GGUF: GgufForm[Qwen2MoeConfig] = GgufForm(
    architecture="qwen2moe",
    in_layer={**IN_LAYER, **STACKED_EXPERTS, **SHARED_EXPERT, "ffn_gate_inp": "mlp.gate"},
    single_rows=("mlp.shared_expert_gate",),
    counts={
        **mixtures.COUNTS,
        **mixtures.SIZE,
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    },
    own_config=_own_config,
    not_in_gguf=lambda config: mixtures.not_in_gguf(config, renormalised=False),
    not_in_llama_cpp=lambda config: None if config.qkv_bias else "qwen2moe without biases on q, k and v",
)
FAMILY = Family("qwen2_moe", "Qwen2MoeForCausalLM", read, layer, GGUF)
