"""Folders of small models to be converted."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from karat.config import embedded_model_path
from karat.models.decoder import weight_specs
from karat.models.families import FAMILIES as FORMS
from karat.models.registry import read_config
from tests.support.parallel import hub_name, joined
from tests.support.sideways import sideways

_PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "exaone4": {
        "model_type": "exaone4",
        "sliding_window": None,
        "layer_types": ["full_attention"] * 2,
        "pad_token_id": 0,
    },
    "exaone4 with windows": {
        "model_type": "exaone4",
        "sliding_window": 24,
        "num_hidden_layers": 5,
        "pad_token_id": 0,
        "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "full", "sliding", "sliding")],
        "rope_scaling": {"rope_type": "linear", "factor": 2.5},
    },
    "gemma2": {"model_type": "gemma2", "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 24},
    "gemma3_text": {
        "model_type": "gemma3_text",
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 24,
        "num_hidden_layers": 6,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rope_local_base_freq": 500.0,
    },
    "gemma4_text": {
        "model_type": "gemma4_text",
        "rope_parameters": {"full_attention": _PROPORTIONAL, "sliding_attention": _PLAIN},
        "head_dim": 32,
        "global_head_dim": 64,
        "sliding_window": 24,
        "num_hidden_layers": 6,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 6,
        "top_k_experts": 2,
        "moe_intermediate_size": 48,
    },
    "gemma4_text with layers that read earlier ones": {
        "model_type": "gemma4_text",
        "rope_parameters": {
            "full_attention": _PROPORTIONAL,
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
        "head_dim": 32,
        "global_head_dim": 64,
        "sliding_window": 24,
        "num_hidden_layers": 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"],
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 4100,
        "final_logit_softcapping": 30.0,
    },
    "gemma4_unified_text": {
        "model_type": "gemma4_unified_text",
        "rope_parameters": {"full_attention": _PROPORTIONAL, "sliding_attention": _PLAIN},
        "head_dim": 32,
        "global_head_dim": 64,
        "sliding_window": 24,
        "num_hidden_layers": 2,
    },
    "muse_glimmer_text": {
        "model_type": "muse_glimmer_text",
        "head_dim": 32,
        "sliding_window": 24,
        "num_hidden_layers": 5,
        "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "full", "sliding", "sliding")],
        "layer_rope_theta": [10000.0, 0, 0, 10000.0, 10000.0],
        "tie_word_embeddings": False,
    },
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "llama 3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "yarn": {
        "model_type": "qwen2",
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "original_max_position_embeddings": 32},
    },
    "ministral3": {
        "model_type": "ministral3",
        "head_dim": 32,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "mistral": {"model_type": "mistral", "sliding_window": None, "head_dim": 32},
    "mistral with a window": {"model_type": "mistral", "sliding_window": 24, "head_dim": 32},
    "mistral with a window for every context": {"model_type": "mistral", "sliding_window": 128, "head_dim": 32},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "gpt_oss": {
        "model_type": "gpt_oss",
        "head_dim": 32,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "sliding_window": 24,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "truncate": False,
        },
    },
    "lfm2": {
        "model_type": "lfm2",
        "rms_norm_eps": None,
        "norm_eps": 1e-5,
        "block_multiple_of": 32,
        "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "conv_bias": True,
        "pad_token_id": 0,
    },
    "lfm2_moe": {
        "model_type": "lfm2_moe",
        "rms_norm_eps": None,
        "norm_eps": 1e-5,
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_dense_layers": 1,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "pad_token_id": 0,
    },
    "phi3": {"model_type": "phi3", "sliding_window": 24, "pad_token_id": 0},
    "phi3 with longrope": {
        "model_type": "phi3",
        "original_max_position_embeddings": 64,
        "partial_rotary_factor": 0.5,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.1, 1.25, 1.5],
            "long_factor": [1.0, 2.5, 4.0, 7.75],
        },
        "pad_token_id": 0,
    },
    "mixtral": {"model_type": "mixtral", "head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 2},
    "olmo2": {"model_type": "olmo2", "pad_token_id": 0},
    "olmo3": {
        "model_type": "olmo3",
        "sliding_window": 24,
        "num_hidden_layers": 5,
        "pad_token_id": 0,
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    },
    "olmoe": {"model_type": "olmoe", "num_experts": 6, "num_experts_per_tok": 3, "pad_token_id": 0},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 96,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "head_dim": 32,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
    },
    "seed_oss": {"model_type": "seed_oss", "head_dim": 32, "num_key_value_heads": 2},
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 5, "pad_token_id": 0},
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.0625,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
    },
}


def folder_of(path: Path, seed: int = 0, **changes: Any) -> Path:
    """A random model with the embedded model's tokenizer."""
    path.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded_model_path() / name, path / name)
    config = {
        "model_type": "llama",
        "vocab_size": 4100,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": [2, 0],
        **changes,
    }
    (path / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(seed)
    shapes = {spec.source: (spec.stored or (spec.shape,))[0] for spec in weight_specs(read_config(config))}
    tensors = {
        hub_name(config["model_type"], name): rng.standard_normal(shape, np.float32) for name, shape in shapes.items()
    }
    tensors = joined(tensors, FORMS[config["model_type"]].gguf.joined)
    save_file(sideways(tensors) if config["model_type"] == "gpt_oss" else tensors, path / "model.safetensors")
    return path
