"""config.json is read strictly: transformers 4 and 5 agree, and nothing that may change the result is passed over.

Covers: karat.models.family, karat.models.gemma2, karat.models.gemma3_text, karat.models.gemma4_text,
karat.models.gemma4_unified_text, karat.models.gemma4s, karat.models.gemmas, karat.models.gpt_oss,
karat.models.granite, karat.models.llama, karat.models.mistral, karat.models.ministral3, karat.models.qwen2,
karat.models.qwen3, karat.models.qwen3_moe, karat.models.qwen2_moe, karat.models.mixtral, karat.models.mixtures,
karat.models.olmo2, karat.models.olmoe, karat.models.reader, karat.models.ropes, karat.models.seed_oss,
karat.models.smollm3, karat.models.lfm2, karat.models.lfm2_moe, karat.models.exaone4, karat.models.window_patterns,
karat.models.olmo3, karat.models.phi3, karat.models.muse_glimmer, karat.models.muse_glimmers,
karat.models.muse_glimmer_text.
"""

import copy
import inspect
import math
import re
from pathlib import Path
from typing import Any

import pytest

from karat.config import ModelConfig, ProportionalRope, RopeConfig
from karat.errors import ConfigError
from karat.models.families import FAMILIES
from karat.models.reader import ConfigReader, read_dtype
from karat.models.registry import passed_over, read_config
from karat.models.short_convs import ConvShape

COMMON: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "use_cache": True,
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
}
_GEMMA = {
    "hidden_act": ...,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 64,
    "head_dim": 12,
    "query_pre_attn_scalar": 12,
    "attention_bias": False,
    "use_bidirectional_attention": False,
}
_GEMMA4 = {
    **_GEMMA,
    "query_pre_attn_scalar": ...,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 16,
    "num_global_key_value_heads": None,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": True,
    "use_bidirectional_attention": None,
}
EXTRA: dict[str, dict[str, Any]] = {
    "exaone4": {"sliding_window": 64, "sliding_window_pattern": 2, "head_dim": 12, "pad_token_id": 0},
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {
        **_GEMMA,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "rope_local_base_freq": 10000,
        "sliding_window_pattern": 2,
    },
    "gemma4_text": {
        **_GEMMA4,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 100,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
    },
    "gemma4_unified_text": _GEMMA4,
    "granite": {
        "attention_bias": False,
        "mlp_bias": False,
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.0625,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
    },
    "gpt_oss": {
        "sliding_window": 64,
        "head_dim": 12,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "experts_per_token": 2,
        "initial_context_length": 64,
        "swiglu_limit": 7.0,
        "attention_bias": True,
    },
    "lfm2": {
        "rms_norm_eps": ...,
        "norm_eps": 1e-6,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 16,
        "conv_L_cache": 3,
        "conv_bias": False,
        "full_attn_idxs": [1, 3],
        "tie_embedding": True,
        "pad_token_id": 0,
    },
    "lfm2_moe": {
        "rms_norm_eps": ...,
        "norm_eps": 1e-6,
        "conv_L_cache": 3,
        "conv_bias": False,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "pad_token_id": 0,
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
        "num_dense_layers": 1,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.0,
        "use_expert_bias": True,
    },
    "llama": {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1, "head_dim": 8},
    "ministral3": {"sliding_window": 64, "head_dim": 12, "llama_4_scaling_beta": 0.1},
    "mistral": {"sliding_window": 64, "head_dim": 12},
    "qwen2": {"use_sliding_window": False, "sliding_window": 64, "max_window_layers": 2},
    "qwen3": {
        "use_sliding_window": True,
        "sliding_window": 64,
        "max_window_layers": 2,
        "head_dim": 12,
        "attention_bias": False,
    },
    "mixtral": {"sliding_window": 64, "head_dim": 12, "num_local_experts": 8, "num_experts_per_tok": 2},
    "muse_glimmer_text": {
        "hidden_act": ...,
        "hidden_activation": "silu",
        "sliding_window": 64,
        "head_dim": 12,
        "attention_bias": False,
        "final_logit_softcapping": 20.0,
        "layer_rope_theta": None,
        "output_multiplier": 0.2,
        "post_norm_eps": 1e-8,
        "qk_scale_factor": 3.87,
    },
    "olmo2": {"attention_bias": False, "pad_token_id": 0},
    "phi3": {"sliding_window": 64, "original_max_position_embeddings": 64, "pad_token_id": 0},
    "olmo3": {"attention_bias": False, "pad_token_id": 0, "sliding_window": 64},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": False, "attention_bias": False},
    "qwen2_moe": {
        "use_sliding_window": True,
        "sliding_window": 64,
        "max_window_layers": 3,
        "qkv_bias": True,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 24,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "qwen3_moe": {
        "use_sliding_window": True,
        "sliding_window": 64,
        "head_dim": 12,
        "attention_bias": False,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "qwen3_5_moe_text": {
        "attention_bias": False,
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 8,
        "mamba_ssm_dtype": "float32",
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "partial_rotary_factor": 0.25,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 24,
    },
    "qwen3_5_text": {
        "attention_bias": False,
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 8,
        "mamba_ssm_dtype": "float32",
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "partial_rotary_factor": 0.25,
    },
    "qwen3_next": {
        "attention_bias": False,
        "full_attention_interval": 4,
        "head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 8,
        "partial_rotary_factor": 0.25,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 24,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "seed_oss": {"attention_bias": True, "attention_out_bias": False, "mlp_bias": False, "head_dim": 12},
    "smollm3": {"attention_bias": False, "mlp_bias": False, "no_rope_layers": [1, 1, 1, 0], "pad_token_id": 0},
}
LONG = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}


ROPE_BY_KIND = ("gemma3_text", "gemma4_text", "gemma4_unified_text", "olmo3")


def rope_of(family: str, **rope: Any) -> dict[str, Any]:
    """rope_parameters as transformers 5 has them for the family."""
    if family not in ROPE_BY_KIND:
        return rope
    theta = 500000.0 if family == "olmo3" else 10000.0
    return {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": theta}}


def raw_config(family: str, **changes: Any) -> dict[str, Any]:
    raw = {"model_type": family, "architectures": [FAMILIES[family].architecture], **COMMON, **EXTRA[family], **changes}
    return copy.deepcopy({key: value for key, value in raw.items() if value is not ...})


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_4_and_5_write_the_same_model(family: str) -> None:
    theta = 5e5 if family == "olmo3" else 1e6
    four = raw_config(family, rope_theta=theta, rope_scaling={"type": "yarn", **YARN}, torch_dtype="bfloat16")
    rope = rope_of(family, rope_type="yarn", rope_theta=theta, **YARN)
    config = read_config(four)
    assert config == read_config(raw_config(family, rope_parameters=rope, dtype="bfloat16"))
    assert config.rope.theta == theta
    assert config.rope.rope_type == "yarn"
    assert config.rope.attention_factor == pytest.approx(1.1386294361119891, abs=1e-15)
    assert (config.dtype, config.bos_token_id, config.eos_token_ids) == ("bfloat16", 1, (2, 3))


RELEASED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (  # the text of a Gemma 4 release with experts, as its publisher writes it
        {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attention_k_eq_v": True,
            "bos_token_id": 2,
            "dtype": "bfloat16",
            "enable_moe_block": True,
            "eos_token_id": 1,
            "final_logit_softcapping": 30.0,
            "global_head_dim": 512,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 2816,
            "hidden_size_per_layer_input": 0,
            "initializer_range": 0.02,
            "intermediate_size": 2112,
            "layer_types": [*(["sliding_attention"] * 5), "full_attention"] * 5,
            "max_position_embeddings": 262144,
            "model_type": "gemma4_text",
            "moe_intermediate_size": 704,
            "num_attention_heads": 16,
            "num_experts": 128,
            "num_global_key_value_heads": 2,
            "num_hidden_layers": 30,
            "num_key_value_heads": 8,
            "num_kv_shared_layers": 0,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-06,
            "rope_parameters": {
                "full_attention": {
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 1000000.0,
                    "rope_type": "proportional",
                },
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
            "sliding_window": 1024,
            "tie_word_embeddings": True,
            "top_k_experts": 8,
            "use_bidirectional_attention": "vision",
            "use_cache": True,
            "use_double_wide_mlp": False,
            "vocab_size": 262144,
            "vocab_size_per_layer_input": 262144,
        },
        {
            "layer_windows": (*(1024,) * 5, None) * 5,
            "rope": ProportionalRope(theta=1e6, share=0.25),
            "window_rope": RopeConfig(theta=1e4),
            "kv_heads": (*(8,) * 5, 2) * 5,
            "global_head_dim": 512,
            "inputs": None,
            "num_experts_per_tok": 8,
        },
    ),
    (  # a Gemma 3 release: five windows, then a layer that sees all keys and has another RoPE
        {
            "architectures": ["Gemma3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_logit_softcapping": None,
            "bos_token_id": 2,
            "cache_implementation": "hybrid",
            "eos_token_id": [1, 106],
            "final_logit_softcapping": None,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 1152,
            "initializer_range": 0.02,
            "intermediate_size": 6912,
            "max_position_embeddings": 32768,
            "model_type": "gemma3_text",
            "num_attention_heads": 4,
            "num_hidden_layers": 26,
            "num_key_value_heads": 1,
            "pad_token_id": 0,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.50.0.dev0",
            "use_cache": True,
            "vocab_size": 262144,
        },
        {
            "layer_windows": (*(*(512,) * 5, None) * 4, 512, 512),
            "rope": RopeConfig(theta=1e6),
            "window_rope": RopeConfig(theta=1e4),
            "tie_word_embeddings": True,
        },
    ),
    (  # a Gemma 2 release
        {
            "architectures": ["Gemma2ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_logit_softcapping": 50.0,
            "bos_token_id": 2,
            "cache_implementation": "hybrid",
            "eos_token_id": [1, 107],
            "final_logit_softcapping": 30.0,
            "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 2304,
            "initializer_range": 0.02,
            "intermediate_size": 9216,
            "max_position_embeddings": 8192,
            "model_type": "gemma2",
            "num_attention_heads": 8,
            "num_hidden_layers": 26,
            "num_key_value_heads": 4,
            "pad_token_id": 0,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.42.4",
            "use_cache": True,
            "vocab_size": 256000,
        },
        {"layer_windows": (4096, None) * 13, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    ),
    (  # a Qwen2.5 release: a window that is stated and not used, a null-free transformers 4 file
        {
            "architectures": ["Qwen2ForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "eos_token_id": 151645,
            "hidden_act": "silu",
            "hidden_size": 896,
            "initializer_range": 0.02,
            "intermediate_size": 4864,
            "max_position_embeddings": 32768,
            "max_window_layers": 21,
            "model_type": "qwen2",
            "num_attention_heads": 14,
            "num_hidden_layers": 24,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": 32768,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.43.1",
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
        {"head_dim": 64, "layer_windows": (None,) * 24, "eos_token_ids": (151645,)},
    ),
    (  # a Llama 3.2 release: llama3 scaling, explicit head_dim, three end tokens
        {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 128000,
            "eos_token_id": [128001, 128008, 128009],
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "initializer_range": 0.02,
            "intermediate_size": 8192,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": 32,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 32.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.45.0.dev0",
            "use_cache": True,
            "vocab_size": 128256,
        },
        {
            "rope": RopeConfig(theta=500000.0, rope_type="llama3", factor=32.0, original_max_position_embeddings=8192),
            "eos_token_ids": (128001, 128008, 128009),
        },
    ),
    (  # a release of Qwen3 with experts
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "decoder_sparse_step": 1,
            "eos_token_id": 151645,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "initializer_range": 0.02,
            "intermediate_size": 6144,
            "max_position_embeddings": 40960,
            "max_window_layers": 48,
            "mlp_only_layers": [],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "num_attention_heads": 32,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 48,
            "num_key_value_heads": 4,
            "output_router_logits": False,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "router_aux_loss_coef": 0.001,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.51.0",
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
        {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True},
    ),
    (  # LFM2-1.2B: a size of MLPs before it is adjusted, and a head that nothing says is tied
        {
            "architectures": ["Lfm2ForCausalLM"],
            "block_auto_adjust_ff_dim": True,
            "block_dim": 2048,
            "block_ff_dim": 12288,
            "block_ffn_dim_multiplier": 1.0,
            "block_mlp_init_scale": 1.0,
            "block_multiple_of": 256,
            "block_norm_eps": 1e-05,
            "block_out_init_scale": 1.0,
            "block_use_swiglu": True,
            "block_use_xavier_init": True,
            "bos_token_id": 1,
            "conv_L_cache": 3,
            "conv_bias": False,
            "conv_dim": 2048,
            "conv_dim_out": 2048,
            "conv_use_xavier_init": True,
            "eos_token_id": 7,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
            "hidden_size": 2048,
            "initializer_range": 0.02,
            "max_position_embeddings": 128000,
            "model_type": "lfm2",
            "norm_eps": 1e-05,
            "num_attention_heads": 32,
            "num_heads": 32,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "pad_token_id": 0,
            "rope_theta": 1000000.0,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.54.0.dev0",
            "use_cache": True,
            "use_pos_enc": True,
            "vocab_size": 65536,
        },
        {
            "intermediate_size": 8192,
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "convs": ConvShape(layers=(0, 1, 3, 4, 6, 7, 9, 11, 13, 15), taps=3, bias=False),
        },
    ),
    (  # a first-generation file: no rope_theta, no KV heads, no biases mentioned
        {
            "architectures": ["LlamaForCausalLM"],
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "initializer_range": 0.02,
            "intermediate_size": 11008,
            "max_position_embeddings": 2048,
            "max_sequence_length": 2048,
            "model_type": "llama",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-06,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "transformers_version": "4.28.0.dev0",
            "use_cache": True,
            "vocab_size": 32000,
        },
        {"num_kv_heads": 32, "head_dim": 128, "rope": RopeConfig(theta=10000.0), "attention_bias": False},
    ),
]


@pytest.mark.parametrize(("raw", "expected"), RELEASED)
def test_files_in_the_form_of_releases(raw: dict[str, Any], expected: dict[str, Any]) -> None:
    config = read_config(raw)
    assert {name: getattr(config, name) for name in expected} == expected


def test_windows() -> None:
    def windows(family: str, **changes: Any) -> tuple[int | None, ...]:
        return read_config(raw_config(family, **changes)).layer_windows

    assert windows("llama") == (None,) * 4
    assert windows("mistral") == (64,) * 4
    for family in EXTRA:
        assert windows(family, sliding_window=0) == windows(family, sliding_window=None), "0 is none, as in GGUF files"
    assert windows("mistral", sliding_window=None) == (None,) * 4
    assert windows("mistral", sliding_window=...) == (4096,) * 4
    assert windows("qwen2") == (None,) * 4
    assert windows("qwen3") == (None, None, 64, 64)
    assert windows("qwen3_moe") == (64,) * 4
    assert windows("qwen3_moe", use_sliding_window=False) == (None,) * 4
    assert windows("qwen2_moe") == (64, None, 64, None)
    assert windows("qwen2_moe", max_window_layers=...) == (64, None, 64, None)
    assert windows("qwen2_moe", max_window_layers=1) == (64, None, None, None)
    assert windows("gpt_oss") == (64, None, 64, None)
    assert windows("gpt_oss", sliding_window=None) == (None,) * 4
    assert windows("mixtral") == (64,) * 4
    assert windows("mixtral", sliding_window=...) == windows("mixtral", sliding_window=None) == (None,) * 4
    mixed = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    assert windows("qwen3", layer_types=mixed) == (64, None, None, 64)


@pytest.mark.parametrize("kinds", [["full_attention"] * 4, ["sliding_attention"] * 4])
def test_muse_glimmer_states_which_layers_have_rope(kinds: list[str]) -> None:
    """transformers turns the layers whose `layer_rope_theta` is not 0, whatever their windows."""
    theta = read_config(raw_config("muse_glimmer_text")).rope.theta
    config = read_config(
        raw_config("muse_glimmer_text", layer_types=kinds, layer_rope_theta=[theta, 0, 0, theta], sliding_window=64)
    )
    assert [shape.rope is not None for shape in config.shapes] == [True, False, False, True]


def test_the_guide_shows_llama_as_it_is() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "adding-a-model.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^This is all of Llama:\n\n```python\n(.*?)```$", guide, re.MULTILINE | re.DOTALL)
    source = inspect.getsourcefile(FAMILIES["llama"].read)
    assert source is not None and shown == Path(source).read_text(encoding="utf-8")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"model_type": "gpt2"}, "model_type='gpt2'"),
    ("llama", {"model_type": ...}, "model_type=None"),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
    ("gemma2", {"hidden_activation": "gelu"}, "computed with gelu_pytorch_tanh"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0.0"),
    ("gemma2", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping=-1.0"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
    (
        "gemma3_text",
        {"sliding_window": None, "layer_types": ["sliding_attention"] * 4},
        "no sliding_window is in force",
    ),
    ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern=0"),
    ("gemma3_text", {"_sliding_window_pattern": 5}, "_sliding_window_pattern=5"),
    ("gemma3_text", {"rope_parameters": {"rope_type": "default"}}, "expected an object for each of full_attention"),
    (
        "gemma3_text",
        {"rope_parameters": {"full_attention": {}}, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        "rope_parameters and rope_scaling are both stated",
    ),
    ("gemma3_text", {"rope_parameters": {"sliding_attention": {"rope_theta": 5.0}}}, "rope_local_base_freq=10000.0"),
    ("exaone4", {"sliding_window_pattern": "LGL"}, "sliding_window_pattern='LGL': expected an integer"),
    ("exaone4", {"sliding_window_pattern": 0}, "sliding_window_pattern=0"),
    ("exaone4", {"sliding_window": None, "layer_types": ["sliding_attention"] * 4}, "no sliding_window is in force"),
    ("phi3", {"rope_scaling": LONG | {"long_factor": None}}, "long_factor=None: expected a list"),
    (
        "phi3",
        {"rope_scaling": LONG | {"short_factor": [1.0, 1.0]}},
        "2 factors of RoPE; expected one for each of 4",
    ),
    ("phi3", {"rope_scaling": LONG | {"short_factor": [0.5] * 4}}, "short_factor=[0.5, 0.5, 0.5, 0.5]"),
    ("phi3", {"rope_scaling": LONG | {"type": "linear"}}, "rope_type='linear' has a short_factor"),
    ("phi3", {"rope_scaling": LONG | {"short_mscale": 1.2}}, "short_mscale=1.2"),
    ("phi3", {"original_max_position_embeddings": 512, "rope_scaling": LONG}, "original_max_position_embeddings=512"),
    ("phi3", {"layer_types": ["full_attention"] * 4}, "layer_types"),
    ("phi3", {"partial_rotary_factor": 0.4}, "head_dim=3: rotary embedding turns pairs"),
    ("gemma4_text", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all'"),
    ("gemma4_text", {"num_kv_shared_layers": 4}, "expected fewer than all 4 layers"),
    ("gemma4_text", {"num_kv_shared_layers": 3}, "an earlier layer of full_attention, and there is none"),
    ("gemma4_text", {"global_head_dim": 0}, "global_head_dim=0"),
    ("gemma4_text", {"hidden_size_per_layer_input": -1}, "hidden_size_per_layer_input=-1"),
    ("gemma4_text", {"vocab_size_per_layer_input": 99}, "a row for each of 100 tokens"),
    ("gemma4_text", {"top_k_experts": 9}, "num_experts_per_tok=9: expected 1 to num_experts=8"),
    ("gemma4_text", {"num_experts": None}, "num_experts is missing"),
    (
        "gemma4_text",
        {"sliding_window": 0, "layer_types": ["sliding_attention"] * 4},
        "=None: expected a positive number",
    ),
    ("gemma4_text", {"layer_types": ["chunked_attention"] * 4}, "layer_types=["),
    (
        "gemma4_text",
        {"per_layer_config": {"1": {"head_dim": 16}, "3": {"head_dim": 16}}, "global_head_dim": ...},
        "per_layer_config=",
    ),
    ("gemma4_text", {"per_layer_config": {"3": {}}}, "no global_head_dim"),
    (
        "gemma4_text",
        {"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 1.5}}},
        "partial_rotary_factor=1.5: expected",
    ),
    ("gemma4_unified_text", {"enable_moe_block": True}, "enable_moe_block=True"),
    ("granite", {"logits_scaling": 0}, "logits_scaling=0.0"),
    ("granite", {"logits_scaling": True}, "logits_scaling=True"),
    (
        "ministral3",
        {"llama_4_scaling_beta": ..., "rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
        "rope_parameters: llama_4_scaling_beta is missing",
    ),
    (
        "ministral3",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.2}},
        "llama_4_scaling_beta=0.1 and rope_parameters.llama_4_scaling_beta=0.2 disagree",
    ),
    (
        "ministral3",
        {"rope_parameters": {"rope_type": "default"}},
        "q grows by 0.1 with the position, which is supported only with a RoPE",
    ),
    ("ministral3", {"layer_types": ["full_attention"] * 4}, "layer_types"),
    ("smollm3", {"no_rope_layers": [1, 0]}, "1 (RoPE) or 0 for each of 4 layers"),
    ("smollm3", {"no_rope_layers": [1, 1, 1, 2]}, "1 (RoPE) or 0 for each of 4 layers"),
    ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 0}, "no_rope_layer_interval=0"),
    ("qwen2", {"auto_map": {"AutoModel": "x.Y"}}, "auto_map"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
    ("llama", {"hidden_act": 3}, "hidden_act=3: expected a text"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ("qwen2", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope'"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 0.5}}, "factor=0.5"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "twist": 1}}, "twist=1"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ("llama", {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "disagree"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "by layer type"),
    (
        "llama",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 64,
            }
        },
        "low_freq_factor=4.0",
    ),
    ("llama", {"quantization_config": {"quant_method": "gptq"}}, "'gptq'"),
    ("llama", {"quantization_config": {"quant_method": "awq"}}, "'awq'"),
    ("llama", {"quantization_config": {"quant_method": "bitsandbytes"}}, "'bitsandbytes'"),
    ("llama", {"sliding_window": 64}, "sliding_window=64"),
    ("mistral", {"layer_types": ["full_attention"] * 4}, "layer_types"),
    ("mistral", {"attention_bias": True}, "attention_bias=True"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 4}, "no sliding_window is in force"),
    ("qwen2", {"layer_types": ["full_attention"] * 3}, "list of 4 types"),
    ("qwen2", {"layer_types": ["chunked_attention"] * 4}, "'chunked_attention'"),
    ("qwen3", {"head_dim": ...}, "head_dim is missing"),
    ("qwen3", {"head_dim": 7}, "head_dim=7"),
    ("llama", {"num_attention_heads": 3, "head_dim": 8}, "num_attention_heads=3"),
    ("qwen2", {"num_attention_heads": 5, "num_key_value_heads": 5}, "hidden_size=32"),
    ("llama", {"hidden_size": True}, "hidden_size=True: expected an integer"),
    ("llama", {"hidden_size": 32.5}, "hidden_size=32.5: expected an integer"),
    ("llama", {"num_hidden_layers": 0}, "num_layers=0"),
    ("llama", {"vocab_size": ...}, "vocab_size is missing"),
    ("llama", {"rms_norm_eps": 0}, "rms_norm_eps=0"),
    ("llama", {"torch_dtype": 8}, "torch_dtype=8"),
    ("llama", {"rope_theta": 0}, "rope_theta=0.0: expected a number above 1"),
    ("llama", {"rope_theta": math.inf}, "rope_theta=inf: expected a finite number"),
    ("llama", {"rope_theta": math.nan}, "rope_theta=nan: expected a finite number"),
    ("llama", {"rope_theta": 10**400}, "expected a finite number"),
    ("llama", {"rope_theta": ..., "rope_parameters": {"rope_theta": 0.0}}, "rope_theta=0.0"),
    ("llama", {"eos_token_id": "two"}, "'two'"),
    ("llama", {"is_encoder_decoder": True}, "is_encoder_decoder=True"),
    ("llama", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
    ("qwen2", {"embedding_multiplier": 12.0}, "embedding_multiplier=12.0"),
    ("qwen2", {"frob_multiplier": 12.0, "twist_scaling": 8.0}, "2 unknown keys"),
    ("llama", {"attention_chunk_size": 8192}, "attention_chunk_size=8192 is not supported: expected 0, or null"),
    ("llama", {"logits_scaling": 2}, "logits_scaling=2 is not supported: expected 1, or null"),
    *(
        ("llama", {key: value}, f"1 unknown key ({key}={value!r})")
        for key, value in {
            "foo_scale": 2,
            "foo_scale_on": True,
            "foo": 1,
            "foo_bar": {"a": 0},
            "use_rope": False,
            "rotary": 0,
            "rotary_dim": 0,
            "use_causal_mask": False,
            "softmax_scale": 1.0,
            "attention_factor": 1,
            "qk_scale": 1,
            "no_rope_layer_interval": 1,
        }.items()
    ),
    ("llama", {"num_nextn_predict_layers": -1}, "num_nextn_predict_layers=-1: expected a number of layers"),
    ("llama", {"num_nextn_predict_layers": False}, "num_nextn_predict_layers=False"),
    ("llama", {"mtp_num_hidden_layers": 1.5}, "mtp_num_hidden_layers=1.5"),
    ("llama", {"is_causal": False}, "is_causal=False"),
    ("llama", {"use_qk_norm": True}, "use_qk_norm=True"),
    ("qwen3", {"use_qk_norm": False}, "use_qk_norm=False"),
    ("qwen2", {"qkv_bias": False}, "qkv_bias=False"),
    ("qwen3_moe", {"num_experts": ...}, "num_experts is missing"),
    ("qwen3_moe", {"num_experts": 0}, "num_experts_per_tok=2: expected 1 to num_experts=0"),
    ("qwen3_moe", {"num_local_experts": 4}, "num_experts=8 and num_local_experts=4 disagree"),
    ("qwen3_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok=9"),
    ("qwen3_moe", {"num_experts_per_tok": 0}, "num_experts_per_tok=0"),
    ("qwen3_moe", {"moe_intermediate_size": 0}, "moe_intermediate_size=0"),
    ("qwen3_moe", {"norm_topk_prob": 1}, "norm_topk_prob=1: expected true or false"),
    ("qwen3_moe", {"mlp_only_layers": [True]}, "mlp_only_layers=[True]"),
    ("qwen3_moe", {"mlp_only_layers": 3}, "mlp_only_layers=3"),
    ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step=0"),
    ("qwen3_moe", {"n_shared_experts": 1}, "n_shared_experts=1"),
    ("qwen3", {"num_experts": 8}, "num_experts=8"),
    ("mixtral", {"num_local_experts": ...}, "num_experts is missing"),
    ("gpt_oss", {"experts_per_token": 3}, "num_experts_per_tok=2 and experts_per_token=3 disagree"),
    ("gpt_oss", {"swiglu_limit": 0}, "swiglu_limit=0"),
    ("gpt_oss", {"quantization_config": {"quant_method": "gptq"}}, "quantization method 'gptq'"),
    ("mixtral", {"layer_types": ["full_attention"] * 4}, "layer_types"),
    ("olmo2", {"clip_qkv": 8.0}, "clip_qkv=8.0"),
    ("olmo2", {"sliding_window": 64}, "sliding_window=64"),
    ("olmo2", {"layer_types": ["sliding_attention"] * 4}, "no sliding_window is in force"),
    ("olmo3", {"rope_theta": 1e6}, "rope_theta=1e+06: transformers takes it for layers without a window alone"),
    ("olmo3", {"rope_parameters": {"rope_type": "default"}}, "expected an object for each of full_attention"),
    ("olmo3", {"clip_qkv": 8.0}, "clip_qkv=8.0"),
    ("muse_glimmer_text", {"layer_rope_theta": [1e4, 5e5, 1e4, 0]}, "layer_rope_theta"),
    ("muse_glimmer_text", {"layer_rope_theta": [1e4, 0]}, "for each of 4 layers"),
    ("muse_glimmer_text", {"hidden_activation": "gelu"}, "hidden_activation='gelu'"),
    ("muse_glimmer_text", {"sliding_window": None, "layer_types": ["sliding_attention"] * 4}, "no sliding_window is"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv=8.0"),
    ("olmoe", {"clip_qkv": 0}, "clip_qkv=0"),
    ("olmoe", {"sliding_window": 64}, "sliding_window=64"),
    ("qwen2_moe", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size=0"),
    ("qwen2_moe", {"shared_expert_intermediate_size": ...}, "shared_expert_intermediate_size is missing"),
    ("mistral", {"num_key_value_heads": ...}, "num_key_value_heads is missing"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "extrapolation_factor": 0.5}}, "=0.5"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "temperature": 1}}, "temperature=1"),
    ("llama", {"rope_scaling": {"factor": 2.0}}, "rope_type default has no factor"),
]


@pytest.mark.parametrize(("family", "changes", "message"), REFUSED)
def test_refused_by_name(family: str, changes: dict[str, Any], message: str) -> None:
    read_config(raw_config(family))
    with pytest.raises(ConfigError) as caught:
        read_config(raw_config(family, **changes))
    assert message in str(caught.value)


UNKNOWN: dict[str, Any] = {
    "residual_scale": 1,
    "residual_dropout": 0.0,
    "alibi": False,
    "scale_emb": 1.0,
    "no_rope_layers": [],
    "foo_bar": {},
    "foo_text": "",
    "foo_step": 1,
    "num_frobs": 0,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_unknown_keys_that_say_nothing_are_named(family: str) -> None:
    expected = read_config(raw_config(family))
    read = {"residual_dropout"} if family == "seed_oss" else set()
    unknown = {key: value for key, value in UNKNOWN.items() if key not in {*EXTRA[family], *read}}
    for key, value in unknown.items():
        raw = raw_config(family, **{key: value})
        assert read_config(raw) == expected and passed_over(raw) == (f"{key}={value!r}",)
    assert passed_over(raw_config(family)) == ()
    rope = {"rope_type": "linear", "factor": 2.0}
    if family == "llama":
        raw = raw_config(family, rope_scaling=rope | {"frob": 0})
        assert read_config(raw) == read_config(raw_config(family, rope_scaling=rope))
        assert passed_over(raw) == ("rope_scaling.frob=0",)


NEUTRAL: dict[str, Any] = {
    "attention_chunk_size": None,
    "text_config": None,
    "vision_config": None,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": 0.0,
    "neftune_noise_alpha": 5.0,
    "use_bias": False,
    "mlp_bias": False,
    "attention_bias": False,
    "is_causal": True,
    "mtp_num_layers": 0,
    "mtp_num_hidden_layers": 1,
    "num_nextn_predict_layers": 2,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.1,
    "seed": 42,
    "unk_token_id": 0,
    "_commit_hash": "a" * 40,
    "max_seq_len": 4096,
    "max_seq_length": 4096,
    "n_positions": 1024,
    "n_ctx": 1024,
    "seq_length": 8192,
    "router_aux_loss_coef": 0.001,
    "router_z_loss_coef": 0.001,
    "router_jitter_noise": 0.01,
    "model_max_length": 4096,
    "auto_map": None,
    "quantization_config": None,
    "sliding_window_pattern": None,
    "layer_types": None,
    "layer_norm_epsilon": 1e-5,
    "num_local_experts": 0,
    "embedding_multiplier": 1,
    "residual_multiplier": 1.0,
    "partial_rotary_factor": 1,
    "rope_interleaved": None,
    "torch_dtype": None,
    "frob_of_next_year": None,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_changes_nothing_is_no_key(family: str) -> None:
    expected = read_config(raw_config(family))
    neutral = {key: value for key, value in NEUTRAL.items() if key not in EXTRA[family]}
    if "num_experts" in EXTRA[family]:
        del neutral["num_local_experts"]
    for key, value in neutral.items():
        assert read_config(raw_config(family, **{key: value})) == expected, key
    assert read_config(raw_config(family, **neutral)) == expected
    assert read_config({**raw_config(family), "architectures": []}) == expected
    assert read_config(raw_config(family, use_qk_norm=family.startswith("qwen3"))) == expected


def test_layers_without_experts() -> None:
    def dense(**changes: Any) -> set[int]:
        return set(read_config(raw_config("qwen3_moe", **changes)).dense_layers)

    assert dense() == dense(mlp_only_layers=None) == set()
    assert dense(mlp_only_layers=[2, 0]) == {0, 2}
    assert dense(decoder_sparse_step=2) == {0, 2}
    assert dense(decoder_sparse_step=2, mlp_only_layers=[1]) == {0, 1, 2}
    assert dense(decoder_sparse_step=5) == {0, 1, 2, 3}


def test_the_number_of_experts_has_two_names() -> None:
    """transformers 5 writes num_local_experts."""
    assert read_config(raw_config("qwen3_moe", num_experts=..., num_local_experts=8)) == read_config(
        raw_config("qwen3_moe")
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_null_and_absence_mean_what_they_mean_to_transformers(family: str) -> None:
    """KV heads of null, windows that are not stated, and RoPE keys of the first implementation of yarn."""
    transformers = pytest.importorskip("transformers")
    assert read_config(raw_config(family, num_key_value_heads=None)).num_kv_heads == 4
    changes: list[dict[str, Any]] = []
    if family not in (
        "exaone4",
        "gemma2",
        "gemma3_text",
        "gemma4_text",
        "gemma4_unified_text",
        "gpt_oss",
        "lfm2",
        "lfm2_moe",
        "ministral3",
        "mistral",
        "mixtral",
        "muse_glimmer_text",
        "qwen2_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_moe",
        "qwen3_next",
    ):  # transformers 5 refuses it
        changes += [{"num_key_value_heads": None}]
    yarn = rope_of(family, rope_type="yarn", **YARN, finetuned=True, extrapolation_factor=1)
    changes += [{"rope_parameters": yarn}] if family != "phi3" else []  # where transformers takes it for longrope
    if family in ("exaone4", "muse_glimmer_text", "olmo3") or family.startswith("gemma"):
        changes += [{"sliding_window": ...}, {"layer_types": None}]
    elif family not in ("granite", "llama", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "seed_oss"):
        changes += [{"sliding_window": ...}, {"sliding_window": None}]
    if family in ("qwen2", "qwen3"):
        changes += [{"use_sliding_window": True, "sliding_window": ..., "max_window_layers": 2}]
        changes += [{"use_sliding_window": True, "sliding_window": None, "max_window_layers": 2}]
        changes += [{"use_sliding_window": True, "max_window_layers": 3, "layer_types": None}]
    for change in changes:
        raw = raw_config(family, **change)
        ours = read_config(raw)
        own = {key: value for key, value in raw.items() if key not in ("model_type", "architectures")}
        theirs = transformers.AutoConfig.for_model(family, **own)
        assert ours.num_kv_heads == theirs.num_key_value_heads
        window = getattr(theirs, "sliding_window", None)
        kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * 4
        assert ours.layer_windows == tuple(window if kind == "sliding_attention" else None for kind in kinds), change
        assert ours.rope.rope_type == theirs.rope_parameters.get("full_attention", theirs.rope_parameters)["rope_type"]


def test_the_stated_type_is_information_and_refuses_nothing() -> None:
    """Every tensor is used in its own type. What is passed over is named."""
    for stated, dtype, passed in (
        ({"dtype": "bfloat16", "torch_dtype": "torch.bfloat16"}, "bfloat16", []),
        ({"dtype": None, "torch_dtype": "torch.bfloat16"}, "bfloat16", []),
        ({"dtype": "bfloat16", "torch_dtype": "float32"}, "bfloat16", ["torch_dtype='float32'"]),
        ({"dtype": "auto", "torch_dtype": "float16"}, "float16", ["dtype='auto'"]),
        ({"torch_dtype": "int8"}, None, ["torch_dtype='int8'"]),
    ):
        reader = ConfigReader(stated)
        assert (read_dtype(reader), reader.passed_over) == (dtype, passed)
        assert read_config(raw_config("llama", **stated)).dtype == dtype


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_is_read_known_or_refused(family: str) -> None:
    """No key of a file can be changed to nonsense without an error, unless it is on the list of harmless ones."""
    raw = raw_config(family)
    harmless = {"architectures", "use_cache", "initializer_range", "attention_dropout", "pretraining_tp"}
    for key in raw.keys() - harmless - {"pad_token_id", "initial_context_length"}:
        with pytest.raises(ConfigError):
            read_config({**raw, key: {"nonsense": 1}})


def test_transformers_own_files_are_read(tmp_path: Any) -> None:
    """What the installed transformers writes for a default configuration of each family, with its own reading of it."""
    transformers = pytest.importorskip("transformers")
    import json

    for family in FAMILIES:
        config = transformers.AutoConfig.for_model(family, architectures=[FAMILIES[family].architecture])
        config.save_pretrained(tmp_path / family)
        ours = read_config(json.loads((tmp_path / family / "config.json").read_text()))
        assert isinstance(ours, ModelConfig)
        assert ours.num_layers == config.num_hidden_layers
        assert ours.head_dim == config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads
        assert ours.tie_word_embeddings == config.tie_word_embeddings
        rope = config.rope_parameters
        assert ours.rope.theta == rope.get("full_attention", rope)["rope_theta"]
