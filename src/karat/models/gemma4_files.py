"""Gemma 4 as GGUF has it, in all its forms; `ARCHITECTURE` is one for all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import GgufForm, has_bias
from karat.checkpoint.weights import Weight
from karat.config import ProportionalRope
from karat.errors import ConfigError
from karat.models import gemmas
from karat.models.gemma4s import INNER_SIZES, KINDS, KV_HEADS, WINDOW_THETA, Gemma4Config
from karat.models.gemmas import FINAL_CAP

ARCHITECTURE = "gemma4"
_PATTERN = "attention.sliding_window_pattern"
_WINDOW_SIZES = ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa")
_TABLE = "model.embed_tokens_per_layer.weight"
_TENSORS: Mapping[str, str] = {
    **gemmas.TENSORS,
    **gemmas.QK_NORMS,
    "ffn_gate_inp": "router.proj",
    "ffn_gate_exps": "experts.gate_proj",
    "ffn_up_exps": "experts.up_proj",
    "ffn_gate_up_exps": "experts.gate_up_proj",
    "ffn_down_exps": "experts.down_proj",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "layer_output_scale": "layer_scalar",
}
_TOP: Mapping[str, str] = {
    "per_layer_token_embd.weight": _TABLE,
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
}
_COUNTS: Mapping[str, str] = {
    "expert_count": "num_experts",
    "expert_used_count": "top_k_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
}


def _own_config(metadata: Metadata, weights: Mapping[str, Weight]) -> dict[str, Any]:
    """What a GGUF file states in another way than config.json."""
    size, *others = (metadata.get(int, f"{ARCHITECTURE}.{key}") for key in _WINDOW_SIZES)
    if others != [size, size]:
        raise ConfigError(f"{ARCHITECTURE}.{_WINDOW_SIZES[0]}={size}, but {others}: expected one size of a head")
    sliding = metadata.array(f"{ARCHITECTURE}.{_PATTERN}", "BOOL", "INT32", "UINT32")
    kinds = None if sliding is None else [KINDS[not each] for each in sliding.numbers().tolist()]
    first = metadata.get(int, f"{ARCHITECTURE}.block_count") - metadata.get(
        int, f"{ARCHITECTURE}.attention.shared_kv_layers", 0
    )
    table = weights.get(_TABLE)
    return {
        "layer_types": kinds,
        "sliding_window": metadata.get(int, f"{ARCHITECTURE}.attention.sliding_window"),
        "head_dim": size,
        "global_head_dim": metadata.get(int, f"{ARCHITECTURE}.attention.key_length"),
        "attention_k_eq_v": any(
            f"model.layers.{layer}.self_attn.k_proj.weight" in weights
            and f"model.layers.{layer}.self_attn.v_proj.weight" not in weights
            for layer in range(first)
        ),
        "attention_bias": has_bias(weights, ".self_attn."),
        "enable_moe_block": bool(metadata.get(int, f"{ARCHITECTURE}.expert_count", 0)),
        "hidden_size_per_layer_input": metadata.get(int, f"{ARCHITECTURE}.embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": None if table is None else table.shape[0],
    }


def _written(config: Gemma4Config) -> dict[str, int | Sequence[int]]:
    """The metadata that are by kind of layer."""
    windows, size = config.layer_windows, config.global_head_dim
    return {
        "attention.sliding_window": next((window for window in windows if window), 1),
        _PATTERN: [window is not None for window in windows],
        "attention.head_count_kv": config.kv_heads,
        "feed_forward_length": config.inner_sizes,
        "attention.key_length": size,
        "attention.value_length": size,
        "rope.dimension_count": size,
        **dict.fromkeys(_WINDOW_SIZES, config.head_dim),
    }


def _without_values(config: Gemma4Config) -> tuple[int, ...]:
    layers = range(config.num_layers)
    is_k = [config.attention_k_eq_v and config.layer_windows[layer] is None for layer in layers]
    return tuple(layer for layer in layers if is_k[layer] or config.kv_layer(layer) is not None)


def _not_in_gguf(config: Gemma4Config) -> str | None:
    rope = config.rope
    return "a proportional RoPE with a factor" if isinstance(rope, ProportionalRope) and rope.factor != 1 else None


def _not_in_llama_cpp(config: Gemma4Config) -> str | None:
    first, windows = config.num_layers - config.num_kv_shared_layers, config.layer_windows
    if config.attention_bias:
        return "gemma4 with biases in its attention"
    if not isinstance(config.rope, ProportionalRope):
        return f"gemma4 whose RoPE is {config.rope.rope_type}"
    if any(config.kv_layer(layer) != first - (2 if windows[layer] else 1) for layer in range(first, config.num_layers)):
        return "gemma4 whose last layers read K and V of others than the two before them"
    if config.inputs and config.inputs.vocab_size != config.vocab_size:
        return "gemma4 with per-layer embeddings of another vocabulary"
    return None


GGUF: GgufForm[Gemma4Config] = GgufForm(
    architecture=ARCHITECTURE,
    in_layer=_TENSORS,
    bare=("layer_scalar",),
    whole_names={"ffn_gate_inp.scale": "router.scale", "ffn_down_exps.scale": "router.per_expert_scale"},
    top=_TOP,
    numbers={FINAL_CAP: FINAL_CAP},
    counts=_COUNTS,
    by_layer={"attention.head_count_kv": KV_HEADS, "feed_forward_length": INNER_SIZES},
    own_keys=(_PATTERN, *_WINDOW_SIZES),
    constants={},
    has_window=True,
    llama_cpp_has_window=True,
    is_proportional=True,
    states_merges=True,
    sizes_by_layer=True,
    window_theta=WINDOW_THETA,
    own_config=_own_config,
    written=_written,
    without_values=_without_values,
    not_in_gguf=_not_in_gguf,
    not_in_llama_cpp=_not_in_llama_cpp,
)
