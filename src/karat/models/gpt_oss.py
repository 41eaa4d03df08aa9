"""gpt-oss (arXiv 2508.10925): mixtures with biases and a clamped SwiGLU, attention with sinks, windows in turns."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import IN_LAYER, STACKED_EXPERTS, GgufForm, has_bias, stated_window
from karat.errors import ConfigError
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models import mixtures
from karat.models.family import Family, read_decoder
from karat.models.mixtures import MixtureConfig
from karat.models.reader import ConfigReader, read_layer_windows, read_window
from karat.ops.api import Clamp

# What a config.json without the key means; GGUF has no keys for the last two.
_THETA, _WINDOW, _HEAD_DIM, _KV_HEADS, _LIMIT, _ALPHA = 150_000.0, 128, 64, 8, 7.0, 1.702
_ROPE = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOssConfig(MixtureConfig):
    """Adds whether q, k, v and o have biases, and the numbers of the experts' activation (`Clamp`)."""

    attention_bias: bool
    swiglu_limit: float
    swiglu_alpha: float


def layer(place: Place, config: GptOssConfig, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, bias, shape = config.hidden_size, config.rms_norm_eps, config.attention_bias, config.shape(index)
    attention_norm = RMSNorm(place / "input_layernorm", size, eps)
    attention = Attention(place / "self_attn", size, shape, qkv_bias=bias, o_bias=bias, has_sinks=True)
    mlp_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    clamp = Clamp(config.swiglu_limit, config.swiglu_alpha)
    mlp = mixtures.mixture(place / "mlp", config, bias=True, clamp=clamp, router="router")
    return Block(place.name, Branch(attention_norm, attention), Branch(mlp_norm, mlp))


def read(reader: ConfigReader) -> GptOssConfig:
    """The configuration from a config.json of this family. An expert has the intermediate_size."""
    num_layers, states_heads = reader.get(int, "num_hidden_layers"), reader.present("num_key_value_heads")
    num_heads = reader.get(int, "num_attention_heads")
    reader.raw("initial_context_length")  # RoPE states it
    window = read_window(reader, _WINDOW)
    kinds = "sliding_attention" if window else "full_attention", "full_attention"
    limit, alpha = reader.get(float, "swiglu_limit", _LIMIT), reader.get(float, "swiglu_alpha", _ALPHA)
    if not limit > 0:
        raise ConfigError(f"swiglu_limit={limit}: expected a number above 0")
    return read_decoder(
        reader,
        GptOssConfig,
        layer_windows=read_layer_windows(reader, num_layers, window, [kinds[index % 2] for index in range(num_layers)]),
        num_kv_heads=reader.get(int, "num_key_value_heads", num_heads if states_heads else _KV_HEADS),
        head_dim=reader.optional(int, "head_dim") if reader.present("head_dim") else _HEAD_DIM,
        default_theta=_THETA,
        default_rope=_ROPE,
        attention_bias=reader.get(bool, "attention_bias", True),
        **mixtures.read_experts(reader),
        moe_intermediate_size=reader.get(int, "intermediate_size"),
        norm_topk_prob=True,
        swiglu_limit=limit,
        swiglu_alpha=alpha,
    )


def _own_config(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    window = stated_window(metadata, "gpt-oss") or None
    return {"attention_bias": has_bias(names, ".self_attn."), "sliding_window": window}


def _not_in_gguf(config: GptOssConfig) -> str | None:
    if (config.swiglu_limit, config.swiglu_alpha) != (_LIMIT, _ALPHA):
        return f"swiglu_limit={config.swiglu_limit} and swiglu_alpha={config.swiglu_alpha}"
    windows = config.layer_windows
    in_turns = all((window is None) == (index % 2 == 1) for index, window in enumerate(windows))
    return None if in_turns or not any(windows) else "windows on other layers than the first, the third, and so on"


GGUF: GgufForm[GptOssConfig] = GgufForm(
    architecture="gpt-oss",
    in_layer={
        **{stored: name for stored, name in IN_LAYER.items() if stored != "ffn_norm"},
        **STACKED_EXPERTS,
        "post_attention_norm": "post_attention_layernorm",
        "attn_sinks": "self_attn.sinks",
        "ffn_gate_inp": "mlp.router",
    },
    bare=("self_attn.sinks",),
    has_window=True,
    llama_cpp_has_window=True,
    yarn_truncates=False,
    unscaled={"rope_type": "default"},
    counts=mixtures.COUNTS | {"expert_feed_forward_length": "intermediate_size"},
    own_config=_own_config,
    not_in_gguf=_not_in_gguf,
    not_in_llama_cpp=lambda config: None if config.attention_bias else "gpt-oss without biases in its attention",
)
FAMILY = Family("gpt_oss", "GptOssForCausalLM", read, layer, GGUF, quantised=("mxfp4",))
