"""Small random models of every family, drawn by seed: a config.json and a transformers model with every tensor random.

`draw_mistral3` and `draw_muse_glimmer` draw one with a vision encoder beside the text model, `draw_voxtral` one with an
audio encoder.

Weights are drawn large enough that attention is far from uniform and logits have a deviation of at least 1; biases and
norm weights are random too, so that a forgotten one shows.
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers

from karat.check.record import hf_muse_glimmer

hf_muse_glimmer.register()  # transformers has the text model as a part of another alone
FAMILIES = (
    "exaone4",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "gemma4_unified_text",
    "gpt_oss",
    "granite",
    "lfm2",
    "lfm2_moe",
    "llama",
    "ministral3",
    "mistral",
    "mixtral",
    "muse_glimmer_text",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
    "seed_oss",
    "smollm3",
)
# Whose traces by transformers are compared in `make test`, or in `make test-long` alone.
# Phi-3 has none: its modules are others than Llama's.
_RECORDED_LATER = (
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "gemma4_unified_text",
    "lfm2",
    "lfm2_moe",
    "muse_glimmer_text",
    "qwen3_next",
)
_NOT_RECORDED = ("phi3",)
RECORDED = tuple(family for family in FAMILIES if family not in (*_RECORDED_LATER, *_NOT_RECORDED))
WITH_TRACES = [*RECORDED, *(pytest.param(family, marks=pytest.mark.long) for family in _RECORDED_LATER)]
_MARGIN = 1e-4
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def draw_config(rng: random.Random, family: str, rope_type: str | None = None) -> dict[str, Any]:
    """A config.json as transformers 5 writes it, for 1 to 3 layers, with awkward sizes; any RoPE type unless given."""
    num_kv_heads = rng.choice([1, 1, 2, 3, 5])
    num_heads = num_kv_heads * rng.choice([1, 2, 3, 5])
    head_dim = rng.choice([8, 12, 16, 20, 34])
    free_head_dim = family.startswith(("gemma", "muse", "qwen3")) or family in (
        "gpt_oss",
        "ministral3",
        "mistral",
        "mixtral",
        "seed_oss",
    )
    if family.startswith(("gemma", "muse")):  # a multiple of the heads, which transformers wants
        hidden = num_heads * rng.choice([5, 7, 9, 12])
        if family == "muse_glimmer_text":  # rows of a few numbers, normalised six times a layer, make roundings large
            hidden *= -(-24 // hidden)
    elif free_head_dim:
        hidden = rng.choice([24, 40, 56, 72])
    elif family in ("exaone4", "granite", "llama", "smollm3") and rng.random() < 0.5:  # head_dim stated and different
        hidden = num_heads * rng.choice([5, 7, 9, 12])
    else:
        hidden = num_heads * head_dim
        head_dim = hidden // num_heads
    num_layers = rng.choice([1, 2, 3])
    config: dict[str, Any] = {
        "model_type": family,
        "architectures": [_class_of(family) + "ForCausalLM"],
        "vocab_size": rng.choice([61, 127, 257, 300, 509]),
        "hidden_size": hidden,
        "intermediate_size": rng.choice([17, 45, 77, 101, 130]),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "max_position_embeddings": 512,
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]),
        "hidden_act": "silu",
        "tie_word_embeddings": rng.random() < 0.5,
        "rope_parameters": draw_rope(rng, rope_type),
        "bos_token_id": 1,
        "eos_token_id": rng.choice([2, [2, 3]]),
    }
    if free_head_dim or hidden != num_heads * head_dim:
        config["head_dim"] = head_dim
    window = rng.choice([None, 7, 33, 64])
    if family == "mistral":
        config["sliding_window"] = window
    elif family == "ministral3":
        config |= {"sliding_window": window, "pad_token_id": 0, "rope_parameters": _growing(rng, config)}
    elif family == "phi3":
        config |= {"sliding_window": window, "pad_token_id": 0, **_draw_phi3(rng, head_dim, rope_type)}
    elif family == "exaone4":
        stated = {"sliding_window_pattern": 2} if rng.random() < 0.5 else {"layer_types": _draw_types(rng, num_layers)}
        stated = {"layer_types": ["full_attention"] * num_layers} if window is None else stated
        config |= {"sliding_window": window, "pad_token_id": 0, **stated}
    elif family == "smollm3":
        config |= {"use_sliding_window": window is not None, "sliding_window": window, "pad_token_id": 0}
        config |= rng.choice(
            [{}, {"no_rope_layer_interval": 2}, {"no_rope_layers": [rng.choice([0, 1]) for _ in range(num_layers)]}]
        )
    elif family in ("qwen2", "qwen3"):
        config["use_sliding_window"] = window is not None
        config["sliding_window"] = window
        config["max_window_layers"] = rng.choice([0, 1])
        if rng.random() < 0.5 and window is not None:
            config["layer_types"] = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(num_layers)]
    elif family == "qwen2_moe":
        config |= {"use_sliding_window": window is not None, "sliding_window": window or 4096}
        config["max_window_layers"] = rng.choice([1, 3])
    elif family == "qwen3_moe":
        config |= {"use_sliding_window": window is not None, "sliding_window": window}
    elif family == "mixtral":
        config["sliding_window"] = window
    elif family == "gpt_oss":
        config["sliding_window"] = window or 20
        if rng.random() < 0.3:
            config["layer_types"] = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(num_layers)]
        config |= {"swiglu_limit": rng.choice([0.7, 1.5]), "swiglu_alpha": rng.choice([1.702, 0.6])}
    if family in ("gpt_oss", "mixtral", "olmoe", "qwen2_moe", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next"):
        number = "num_local_experts" if family in ("gpt_oss", "mixtral") else "num_experts"
        config[number] = rng.choice([2, 5, 12, 24])
        config["num_experts_per_tok"] = rng.randint(1, min(4, config[number]))
    if family in ("olmoe", "qwen2_moe", "qwen3_moe", "qwen3_next"):
        config["norm_topk_prob"] = rng.random() < 0.5
    if family in ("qwen2_moe", "qwen3_moe", "qwen3_next"):
        config["moe_intermediate_size"] = rng.choice([9, 21, 40])
        config |= rng.choice([{}, {}, {"decoder_sparse_step": 2}, {"mlp_only_layers": [rng.randrange(num_layers)]}])
    if family == "qwen3_next":
        config["shared_expert_intermediate_size"] = rng.choice([13, 32])
    if family == "qwen2_moe":
        config |= {"shared_expert_intermediate_size": rng.choice([13, 32]), "qkv_bias": rng.random() < 0.8}
    if family in ("olmo2", "olmo3", "olmoe"):
        config["pad_token_id"] = 0
    if family == "olmo3":  # transformers 5.24 looks for truncate beside the kinds
        ropes = {"full_attention": config["rope_parameters"], "sliding_attention": draw_rope(rng)}
        ropes = {kind: {key: each for key, each in rope.items() if key != "truncate"} for kind, rope in ropes.items()}
        config |= {
            "sliding_window": window or 20,
            "rope_parameters": ropes,
            "layer_types": _draw_types(rng, num_layers),
        }
    if family == "granite":
        config |= {
            "embedding_multiplier": rng.choice([12.0, 0.3]),
            "attention_multiplier": head_dim**-0.5 * rng.choice([0.8, 1.3]),
            "residual_multiplier": rng.choice([0.22, 1.6]),
            "logits_scaling": rng.choice([0.3, 0.1]),
        }
    if family in (
        "gpt_oss",
        "granite",
        "llama",
        "olmo2",
        "olmo3",
        "olmoe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
    ):
        config["attention_bias"] = rng.random() < 0.5
    if family in ("granite", "llama", "seed_oss", "smollm3"):
        config["mlp_bias"] = rng.random() < 0.5
    if family.startswith("qwen3_5") or family == "qwen3_next":
        config |= _draw_hybrid(rng, config)
        config = {key: value for key, value in config.items() if value is not None}
    if family == "qwen3_5_moe_text":
        config |= {
            "moe_intermediate_size": rng.choice([9, 21]),
            "shared_expert_intermediate_size": rng.choice([13, 32]),
        }
        del config["intermediate_size"]
    if family == "lfm2_moe":
        config |= {
            "num_experts": rng.choice([2, 5, 12, 24]),
            "moe_intermediate_size": rng.choice([9, 21, 40]),
            "num_dense_layers": rng.choice([0, 1]),
            "use_expert_bias": rng.random() < 0.7,
            "norm_topk_prob": rng.random() < 0.7,
            "routed_scaling_factor": rng.choice([1.0, 0.4, 2.5]),
        }
        config["num_experts_per_tok"] = rng.randint(1, min(4, config["num_experts"]))
    if family.startswith("lfm2"):
        config |= _draw_convs(rng, config)
        config = {key: value for key, value in config.items() if value is not None}
    if family == "seed_oss":
        config["attention_out_bias"] = rng.random() < 0.5
    if family.startswith("gemma4"):
        config |= _draw_gemma4(rng, config)
        del config["hidden_act"]
    elif family.startswith("gemma"):
        config |= _draw_gemma(rng, config)
        del config["hidden_act"]
    if family == "muse_glimmer_text":
        config |= _draw_muse_glimmer(rng, config)
        del config["hidden_act"]
    return config


def _draw_muse_glimmer(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    """Windows and RoPE in some layers, factors and eps that are felt, and a cap that is."""
    num_layers, theta = rng.choice([1, 2, 5]), config["rope_parameters"]["rope_theta"]
    turned = {"layer_rope_theta": [rng.choice([0, theta]) for _ in range(num_layers)]}
    return {
        "num_hidden_layers": num_layers,
        **rng.choice([{}, {"layer_types": _draw_types(rng, num_layers)}]),
        **rng.choice([{}, turned]),
        "sliding_window": rng.choice([7, 33, 64]),
        "hidden_activation": "silu",
        "pad_token_id": 0,
        "post_norm_eps": rng.choice([1e-8, 1e-3, 0.1]),
        "qk_scale_factor": rng.choice([3.87, 2.5]),
        "output_multiplier": rng.choice([0.7, 2.0]),
        "final_logit_softcapping": rng.choice([2.5, 20.0]),
        "attention_bias": rng.random() < 0.3,
    }


def _draw_gemma(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    """Windows, another divisor of q than the usual, caps that are felt, and RoPE by kind of layer in Gemma 3."""
    num_layers, caps = config["num_hidden_layers"], {"final_logit_softcapping": rng.choice([None, 2.5, 30.0])}
    if config["model_type"] == "gemma2":
        layers: dict[str, Any] = rng.choice([{}, {"layer_types": _draw_types(rng, num_layers)}])
        caps["attn_logit_softcapping"] = rng.choice([None, 15.0, 25.0])
    else:
        local = {"sliding_attention": draw_rope(rng), "full_attention": config["rope_parameters"]}
        for rope in local.values():
            rope.pop("truncate", None)  # transformers 5.24 looks for it beside the kinds
        layers = rng.choice([{"sliding_window_pattern": 2}, {"layer_types": _draw_types(rng, num_layers)}])
        layers |= {"rope_parameters": local}
    return {
        **layers,
        **caps,
        "pad_token_id": 0,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": rng.choice([7, 33, 64]),
        "query_pre_attn_scalar": rng.choice([5, 8]),
        "attention_bias": rng.random() < 0.5,
    }


def _draw_phi3(rng: random.Random, head_dim: int, rope_type: str | None) -> dict[str, Any]:
    """RoPE of a part of a head, plain or with other factors beyond an original length, which prompts cross or not."""
    part = rng.choice([part for part in (1.0, 0.5, 0.75) if int(head_dim * part) % 2 == 0])
    rope = {"rope_type": "default", "rope_theta": rng.choice([10000.0, 500.0]), "partial_rotary_factor": part}
    original = {"default": 4096, "linear": 64, "llama3": 256, "yarn": 199}[rope_type or rng.choice(ROPE_TYPES)]
    if original < 512:
        pairs = int(head_dim * part) // 2
        rope |= {"rope_type": "longrope", "original_max_position_embeddings": original}
        rope |= {
            f"{kind}_factor": [rng.uniform(1, most) for _ in range(pairs)] for kind, most in (("short", 2), ("long", 8))
        }
    return {"rope_parameters": rope, "original_max_position_embeddings": original}


def _draw_gemma4(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    """Layers of both kinds, with heads and RoPE of their own; experts, K and V of earlier layers, inputs of layers."""
    num_layers, num_heads = rng.choice([1, 2, 3, 4]), config["num_attention_heads"]
    kinds = [*_draw_types(rng, num_layers - 1), "full_attention"]
    shared = rng.choice([0, 0, num_layers // 2])
    if not set(kinds) <= set(kinds[: num_layers - shared]):
        shared = 0
    full = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": rng.choice([0.25, 0.5, 0.8])}
    full |= rng.choice([{}, {"factor": 2.0}])
    own: dict[str, Any] = {
        "num_hidden_layers": num_layers,
        "layer_types": kinds,
        "pad_token_id": 0,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": rng.choice([7, 33, 64]),
        "head_dim": rng.choice([8, 12, 16]),
        "global_head_dim": rng.choice([16, 20, 34]),
        "attention_k_eq_v": rng.random() < 0.5,
        "num_global_key_value_heads": rng.choice([None, 1, num_heads]),
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": rng.random() < 0.5,
        "attention_bias": rng.random() < 0.3,
        "final_logit_softcapping": rng.choice([None, 2.5, 30.0]),
        "rope_parameters": {"sliding_attention": draw_rope(rng, "default"), "full_attention": full},
    }
    if config["model_type"] == "gemma4_unified_text":
        return own | {"num_kv_shared_layers": 0}
    own |= {"hidden_size_per_layer_input": rng.choice([12, 20] if shared else [0, 0, 12, 20])}  # which 5.24 wants there
    own |= {"vocab_size_per_layer_input": config["vocab_size"] + rng.choice([0, 3])}
    if rng.random() < 0.4:
        number = rng.choice([2, 5, 12])
        own |= {"enable_moe_block": True, "num_experts": number, "top_k_experts": rng.randint(1, min(4, number))}
        own |= {"moe_intermediate_size": rng.choice([9, 21])}
    return own


def draw_gemma_of_gguf(rng: random.Random, family: str) -> dict[str, Any]:
    """A config.json of a Gemma that a GGUF file can state: RoPE and q's divisor are as the architecture has them."""
    config = draw_config(rng, family, rng.choice(["default", "linear"]))
    if family.startswith("gemma4"):
        config["rope_parameters"]["full_attention"].pop("factor", None)
        return config | {"attention_bias": False}
    config |= {"final_logit_softcapping": 4.0, "query_pre_attn_scalar": config["head_dim"]}
    config |= {"num_hidden_layers": rng.choice([1, 3, 7])}
    if family == "gemma2":  # of which the gguf package knows no head
        config |= {"attn_logit_softcapping": 12.0, "tie_word_embeddings": True}
    else:
        config["rope_parameters"]["sliding_attention"] = {"rope_type": "default", "rope_theta": 500.0}
    return {key: value for key, value in config.items() if key not in ("layer_types", "sliding_window_pattern")}


def draw_muse_glimmer_of_gguf(rng: random.Random) -> dict[str, Any]:
    """A config.json of a Muse Glimmer that a GGUF file can state: layers with a window have RoPE."""
    config = draw_config(rng, "muse_glimmer_text", rng.choice(["default", "linear"]))
    types, theta = _draw_types(rng, 3), config["rope_parameters"]["rope_theta"]
    turned = [theta if kind == "sliding_attention" else 0 for kind in types]
    config |= {"num_hidden_layers": 3, "layer_types": types, "layer_rope_theta": turned, "post_norm_eps": 1e-8}
    return config


def _draw_types(rng: random.Random, num_layers: int) -> list[str]:
    return rng.choices(["full_attention", "sliding_attention"], k=num_layers)


def _class_of(family: str) -> str:
    """What the names of transformers' classes begin with."""
    return type(transformers.AutoConfig.for_model(family)).__name__.removesuffix("Config").removesuffix("Text")


def _draw_hybrid(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    """Delta nets and attention with a gate, of which at least one layer each; RoPE of a part of a head."""
    key_heads, kinds = rng.choice([1, 2, 3]), ["linear_attention", "full_attention"]
    part = rng.choice([{}, {"partial_rotary_factor": 0.5}, {"mrope_section": [1, 1, 0], "mrope_interleaved": True}])
    layers = {"layer_types": [*rng.sample(kinds, 2), *rng.choices(kinds, k=rng.choice([0, 1, 2]))]}
    interval = {"full_attention_interval": 2, "layer_types": None}
    layers = rng.choice([layers, interval])
    return {
        "head_dim": rng.choice([16, 24, 32]),
        "num_hidden_layers": len(layers["layer_types"] or range(3)),
        **layers,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * rng.choice([1, 2, 3]),
        "linear_key_head_dim": rng.choice([4, 10, 16]),
        "linear_value_head_dim": rng.choice([4, 12, 20]),
        "linear_conv_kernel_dim": rng.choice([2, 4, 5]),
        "rope_parameters": config["rope_parameters"] | part,
    }


def _draw_convs(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    """Short convolutions and attention, of which at least one layer each, and MLPs of an adjusted size."""
    kinds = ["conv", "full_attention"]
    types = [*rng.sample(kinds, 2), *rng.choices(kinds, k=rng.choice([0, 1, 2]))]
    attention = [index for index, kind in enumerate(types) if kind == "full_attention"]
    sizes: dict[str, Any] = {
        "block_auto_adjust_ff_dim": rng.random() < 0.7,
        "block_ffn_dim_multiplier": rng.choice([1.0, 1.3]),
        "block_multiple_of": rng.choice([8, 20]),
    }
    layers: dict[str, Any] = rng.choice([{"full_attn_idxs": attention}, {"layer_types": types}])
    if "num_experts" in config:
        layers, sizes = {"layer_types": types}, {}
    return {
        "num_hidden_layers": len(types),
        **layers,
        "conv_L_cache": rng.choice([2, 3, 7]),
        "conv_bias": rng.random() < 0.5,
        "pad_token_id": 0,
        "hidden_act": None,
        "norm_eps": rng.choice([1e-5, 1e-3, 0.1]),
        "rms_norm_eps": None,
        **sizes,
    }


def _growing(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    """RoPE's parameters with the growth of q, which transformers also wants where there is none."""
    rope = {"original_max_position_embeddings": 16} | config["rope_parameters"]
    if rope["rope_type"] not in ("llama3", "yarn"):
        return rope | {"llama_4_scaling_beta": 0.0}
    rope |= {"llama_4_scaling_beta": rng.choice([0.1, 0.7]), "original_max_position_embeddings": rng.choice([13, 60])}
    if rope["rope_type"] == "yarn":
        rope |= {"mscale": 1.0, "mscale_all_dim": rng.choice([1.0, 0.5])}
    return rope


def draw_rope(rng: random.Random, rope_type: str | None = None) -> dict[str, Any]:
    """RoPE parameters of this type, or of any supported one, with an original length that the prompts cross."""
    theta = rng.choice([10000.0, 500.0, 1000000.0])
    match rope_type or rng.choice(ROPE_TYPES):
        case "linear":
            return {"rope_type": "linear", "rope_theta": theta, "factor": rng.choice([2.0, 3.5])}
        case "llama3":
            return {
                "rope_type": "llama3",
                "rope_theta": theta,
                "factor": rng.choice([8.0, 32.0]),
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 96,
            }
        case "yarn":
            rope = {
                "rope_type": "yarn",
                "rope_theta": theta,
                "factor": rng.choice([1.5, 4.0]),
                "original_max_position_embeddings": rng.choice([64, 128]),
            }
            extras = {"attention_factor": 0.8, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}
            return rope | {key: value for key, value in extras.items() if rng.random() < 0.4}
    return {"rope_type": "default", "rope_theta": theta}


def draw_mistral3(rng: random.Random, rope_type: str | None = None, family: str = "mistral") -> dict[str, Any]:
    """The config.json of a Mistral or a Ministral 3 with a small vision encoder, as transformers 5 writes it."""
    text = draw_config(rng, family, rope_type)
    del text["architectures"]
    vision = {"model_type": "pixtral", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1}
    return {
        "model_type": "mistral3",
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": vision | {"num_attention_heads": 1, "image_size": 28, "patch_size": 14},
        "image_token_index": 10,
        "multimodal_projector_bias": rng.random() < 0.5,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "vision_feature_layer": -1,
        "tie_word_embeddings": text.pop("tie_word_embeddings"),
    }


def draw_muse_glimmer(rng: random.Random) -> dict[str, Any]:
    """The config.json of a Muse Glimmer with a small vision encoder, as transformers 5 writes it."""
    text = draw_config(rng, "muse_glimmer_text")
    del text["architectures"]
    vision = {"hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 1}
    return {
        "model_type": "muse_glimmer",
        "architectures": ["MuseGlimmerForConditionalGeneration"],
        "text_config": text,
        "vision_config": vision | {"pos_emb_height": 2, "pos_emb_width": 2, "patch_size": 2},
        "out_hidden_size": 64,
        "projector_hidden_size": 8,
        "tie_word_embeddings": text.pop("tie_word_embeddings"),
    }


def draw_voxtral(rng: random.Random) -> dict[str, Any]:
    """The config.json of a Llama with a small audio encoder beside it, as transformers 5 writes it."""
    text = {"head_dim": 16} | draw_config(rng, "llama")
    del text["architectures"]
    text["tie_word_embeddings"] = False  # transformers ties no head of this class
    audio = {"model_type": "voxtral_encoder", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    return {
        "model_type": "voxtral",
        "architectures": ["VoxtralForConditionalGeneration"],
        "text_config": text,
        "audio_config": audio | {"num_attention_heads": 1, "num_mel_bins": 4, "max_source_positions": 8},
        "audio_token_id": 10,
        "projector_hidden_act": "gelu",
        "hidden_size": text["hidden_size"],
        "tie_word_embeddings": False,
    }


def build_decided(rng: random.Random, config: dict[str, Any], ids: Sequence[int]) -> Any:
    """`build` with a drawn seed; drawn again while an expert of these tokens is chosen by less than _MARGIN.

    Such a choice may differ by rounding. In test_exactness.py, of 60 configurations with 200 tokens each, 4 of
    qwen3_moe were drawn again, 4 of gpt_oss, 1 of mixtral (twice), 3 of olmoe (one three times) and 2 of qwen2_moe.
    """
    while True:
        hf = build(config, rng.randrange(2**31))
        if smallest_margin(hf, ids) > _MARGIN:
            return hf


def smallest_margin(hf: Any, ids: Sequence[int]) -> float:
    """The least distance, in deviations of logits, between an expert that is chosen for a token and the next one."""
    margins = [math.inf]

    def look(router: Any, args: tuple[torch.Tensor, ...], _: object) -> None:
        logits = torch.nn.functional.linear(args[0].flatten(0, -2), router.weight, getattr(router, "bias", None))
        if len(args) > 1:  # what is added to sigmoids
            logits = logits.sigmoid() + (0 if args[1] is None else args[1])
        if router.top_k < router.num_experts:
            largest = logits.topk(router.top_k + 1).values
            margins.append(float((largest[:, -2] - largest[:, -1]).min() / logits.std()))

    def look_behind(top_k: int) -> Callable[..., None]:
        def look(_proj: Any, _args: Any, logits: torch.Tensor) -> None:
            if top_k < logits.shape[-1]:
                largest = logits.topk(top_k + 1).values
                margins.append(float((largest[..., -2] - largest[..., -1]).min() / logits.std()))

        return look

    hooks = [module.register_forward_hook(look) for module in hf.modules() if "TopKRouter" in type(module).__name__]
    for module in hf.modules():
        if type(module).__name__ == "Gemma4TextRouter":
            hooks.append(module.proj.register_forward_hook(look_behind(module.config.top_k_experts)))
    with torch.no_grad():
        hf(torch.tensor([list(ids)]))
    for hook in hooks:
        hook.remove()
    return min(margins)


def build(config: dict[str, Any], seed: int, dtype: torch.dtype = torch.float32) -> Any:
    """A transformers model of this configuration with eager attention and every tensor drawn at random."""
    fields = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    hf_config = transformers.AutoConfig.for_model(config["model_type"], **fields)
    hf_config._attn_implementation = "eager"
    if "text_config" in config:
        model = getattr(transformers, config["architectures"][0])._from_config(hf_config, attn_implementation="eager")
    else:
        auto = transformers.AutoModelForCausalLM
        model = auto.from_config(hf_config, attn_implementation="eager", experts_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1 and "norm" in name:
                mean = 2.0 if any(part in name for part in ("q_norm", "k_norm", "q_layer", "k_layer")) else 1.0
                is_plus_one = "linear_num_key_heads" in config and "linear_attn" not in name
                if mean == 2 and config["model_type"].startswith("gemma4"):  # which does not scale scores
                    mean = 1.5 / parameter.shape[0] ** 0.25
                is_plus_one |= config["model_type"] in ("gemma2", "gemma3_text")
                is_plus_one |= config["model_type"].startswith("muse") and "layernorm" in name
                mean -= is_plus_one  # to which 1 is added
                parameter.copy_(mean + 0.3 * noise)
            elif name.endswith("A_log"):  # rates of decay from 0.01 to 16
                parameter.copy_(torch.log(0.01 + 16 * torch.rand(parameter.shape, generator=generator)))
            elif name.endswith("dt_bias"):  # e^-rate is then between 0.01 and 1
                parameter.copy_(3 * noise - 3)
            elif parameter.ndim == 1 or name.endswith("_bias"):
                parameter.copy_(0.5 * noise)
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.copy_(noise * 3 / math.sqrt(parameter.shape[1]))
            elif parameter.ndim > 2 and ".experts." in name:
                columns = parameter.shape[1 if config["model_type"] == "gpt_oss" else 2]
                parameter.copy_(noise * 1.5 / math.sqrt(columns))
            elif parameter.ndim > 2:
                parameter.copy_(noise)
            else:
                gain = 2.0 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj")) else 1.0
                parameter.copy_(noise * gain / math.sqrt(parameter.shape[1]))
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
            if name.endswith("expert_bias"):  # of sigmoids: some experts are chosen for their bias alone
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
    return model.eval().to(dtype)
