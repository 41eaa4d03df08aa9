"""GGUF files byte by byte, right and wrong, and models written by the gguf package."""

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from karat.models.families import FAMILIES
from tests.support.parallel import hub_name, joined

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMS = {
    U8: "<B",
    I8: "<b",
    U16: "<H",
    I16: "<h",
    U32: "<I",
    I32: "<i",
    F32: "<f",
    BOOL: "<B",
    U64: "<Q",
    I64: "<q",
    F64: "<d",
}

Pair = tuple[str, int, Any]  # an array's value is (kind, items)
Tensor = tuple[str, Sequence[int], int, bytes]  # name, dimensions as the file has them, type, data


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(kind: int, content: Any) -> bytes:
    if kind == STRING:
        return text(content)
    if kind == ARRAY:
        item_kind, items = content
        return struct.pack("<IQ", item_kind, len(items)) + b"".join(value(item_kind, item) for item in items)
    return struct.pack(FORMS[kind], content)


def pair(key: str | bytes, kind: int, content: Any) -> bytes:
    return text(key) + struct.pack("<I", kind) + value(kind, content)


def info(name: str | bytes, dims: Sequence[int], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def header(num_tensors: int, num_pairs: int, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_pairs)


def kv(*raw: bytes, count: int | None = None) -> bytes:
    """A file of no tensors and these metadata pairs."""
    return header(0, len(raw) if count is None else count) + b"".join(raw)


def array(kind: int, length: int, content: bytes = b"", key: str = "x") -> bytes:
    return text(key) + struct.pack("<IIQ", ARRAY, kind, length) + content


ARCH = pair("general.architecture", STRING, "llama")  # of a model that is read no further


def build(pairs: Iterable[Pair], tensors: Iterable[Tensor] = (), *, version: int = 3, alignment: int = 32) -> bytes:
    """A right file, if what it is given is right."""
    pairs, tensors = list(pairs), list(tensors)
    head = header(len(tensors), len(pairs), version) + b"".join(pair(*item) for item in pairs)
    body = b""
    for name, dims, kind, data in tensors:
        head += info(name, dims, kind, len(body))
        body += data + bytes(-len(data) % alignment)
    return head + bytes(-len(head) % alignment) + body


CONFIG: Mapping[str, tuple[int, Any]] = {
    "general.architecture": (STRING, "llama"),
    "llama.context_length": (U32, 64),
    "llama.embedding_length": (U32, 8),
    "llama.block_count": (U32, 1),
    "llama.feed_forward_length": (U32, 32),
    "llama.attention.head_count": (U32, 2),
    "llama.attention.head_count_kv": (U32, 1),
    "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
    "tokenizer.ggml.model": (STRING, "llama"),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, ["<unk>", "<s>", "</s>", "▁", "a", "▁a"])),
    "tokenizer.ggml.scores": (ARRAY, (F32, [0, 0, 0, -2, -3, -1])),
    "tokenizer.ggml.token_type": (ARRAY, (I32, [2, 3, 3, 1, 1, 1])),
    "tokenizer.ggml.bos_token_id": (U32, 1),
    "tokenizer.ggml.eos_token_id": (U32, 2),
    "tokenizer.ggml.unknown_token_id": (U32, 0),
}
SHAPES: Mapping[str, tuple[int, ...]] = {
    "token_embd.weight": (8, 6),
    "blk.0.attn_norm.weight": (8,),
    "blk.0.attn_q.weight": (8, 8),
    "blk.0.attn_k.weight": (8, 4),
    "blk.0.attn_v.weight": (8, 4),
    "blk.0.attn_output.weight": (8, 8),
    "blk.0.ffn_norm.weight": (8,),
    "blk.0.ffn_gate.weight": (8, 32),
    "blk.0.ffn_up.weight": (8, 32),
    "blk.0.ffn_down.weight": (32, 8),
    "output_norm.weight": (8,),
}


def pairs(changes: Mapping[str, tuple[int, Any] | None] | None = None) -> list[Pair]:
    """The metadata of a tiny llama; with changes, of which None takes a key out."""
    merged = {**CONFIG, **(changes or {})}
    return [(key, *typed) for key, typed in merged.items() if typed is not None]


def tensors(seed: int = 0) -> list[Tensor]:
    """The tensors of a tiny llama, in float32."""
    rng = np.random.default_rng(seed)
    return [
        (name, dims, 0, rng.standard_normal(int(np.prod(dims)), np.float32).tobytes()) for name, dims in SHAPES.items()
    ]


def tiny(changes: Mapping[str, tuple[int, Any] | None] | None = None, **options: Any) -> bytes:
    """A tiny llama, complete with a tokenizer."""
    return build(pairs(changes), tensors(), **options)


def paired(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """The rows of Q or K in the order that llama's GGUF files have, as llama.cpp's converter makes it."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


_NAMED_ALIKE = {"muse-glimmer": "afmoe"}  # an architecture whose tensors have the same names


def write_model(
    path: Path, config: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]], *, split: int | None = None
) -> None:
    """What the gguf package makes of a Hugging Face model: its config.json and float32 weights."""
    family = config["model_type"]
    named = {
        "gemma3_text": "gemma3",
        "gemma4_text": "gemma4",
        "gemma4_unified_text": "gemma4",
        "gpt_oss": "gpt-oss",
        "ministral3": "mistral3",
        "mistral": "llama",
        "mixtral": "llama",
        "muse_glimmer_text": "muse-glimmer",
        "olmo3": "olmo2",
        "qwen3_5_moe_text": "qwen35moe",
        "qwen3_5_text": "qwen35",
        "qwen3_next": "qwen3next",
    }
    arch = named.get(family, family).replace("_moe", "moe")
    is_paired = arch in ("granite", "llama", "mistral3", "muse-glimmer", "smollm3")
    options = {} if split is None else {"split_max_tensors": split}
    writer = gguf.GGUFWriter(path, arch, **options)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    if arch == "gemma4":
        head_dim = _add_gemma4(writer, config)
    else:
        writer.add_feed_forward_length(config.get("intermediate_size", 8))
        kv_heads = config["num_key_value_heads"]
        writer.add_head_count_kv(
            [kv_heads * each for each in has_attention(config)] if "conv_L_cache" in config else kv_heads
        )
    writer.add_layer_norm_rms_eps(config.get("norm_eps") or config["rms_norm_eps"])
    if taps := config.get("conv_L_cache"):
        writer.add_shortconv_l_cache(taps)
        if config.get("num_experts"):
            writer.add_leading_dense_block_count(config["num_dense_layers"])
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
            if (scale := config["routed_scaling_factor"]) != 1:
                writer.add_expert_weights_scale(scale)
        weights = {name: each[:, 0] if name.endswith("conv.conv.weight") else each for name, each in weights.items()}
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(int(head_dim * rotary_part(config)))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_bos_token_id(config["bos_token_id"])
    ends = config["eos_token_id"]
    for add, token_id in zip((writer.add_eos_token_id, writer.add_eot_token_id), np.atleast_1d(ends), strict=False):
        add(int(token_id))
    _add_rope(writer, config, head_dim)
    if family == "granite":
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if family == "ministral3":
        writer.add_attn_temperature_scale(config["rope_parameters"]["llama_4_scaling_beta"])
    if family == "phi3":
        weights = joined(dict(weights), FAMILIES[family].gguf.joined)
    if family in ("exaone4", "gpt_oss", "olmo3", "phi3") or family.startswith("gemma"):
        writer.add_sliding_window(config["sliding_window"] or 0)
    if family in ("exaone4", "olmo3") and config.get("layer_types"):
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if family.startswith("gemma"):
        for add, key in (
            (writer.add_final_logit_softcapping, "final_logit_softcapping"),
            (writer.add_attn_logit_softcapping, "attn_logit_softcapping"),
        ):
            if cap := config.get(key):
                add(cap)
        plus = np.float32(arch != "gemma4")
        weights = {name: each + plus * ("norm" in name) for name, each in weights.items()}
    if family == "muse_glimmer_text":  # after llama.cpp's converter: the gguf package does not know the architecture
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        writer.add_logit_scale(config["output_multiplier"])
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
        weights = {name: each + np.float32("layernorm" in name) for name, each in weights.items()}
        for layer in range(config["num_hidden_layers"]):
            for part, factor in (("q", config["qk_scale_factor"]), ("k", 1.0)):
                weights[f"model.layers.{layer}.self_attn.{part}_norm.weight"] = np.full(head_dim, factor, np.float32)
    if "linear_num_key_heads" in config:
        key_heads, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(key_heads)
        writer.add_ssm_time_step_rank(heads)
        writer.add_ssm_inner_size(heads * config["linear_value_head_dim"])
        writer.add_full_attention_interval(config["full_attention_interval"])
        writer.add_rope_dimension_sections([1, 1, 1, 0])
        if types := config.get("layer_types"):
            writer.add_array(f"{arch}.attention.recurrent_layers", [kind == "linear_attention" for kind in types])
        weights = {
            new_name: hybrid(new_name, new, config)
            for name, weight in weights.items()
            for new_name, new in parted(name, weight, config)
        }
    if num_experts := config.get("num_experts", config.get("num_local_experts")):
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config.get("top_k_experts") or config["num_experts_per_tok"])
        if size := config.get("moe_intermediate_size"):
            writer.add_expert_feed_forward_length(size)
        if size := config.get("shared_expert_intermediate_size"):
            writer.add_expert_shared_feed_forward_length(size)
        weights = stacked(weights)
    (kind,) = (kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == _NAMED_ALIKE.get(arch, arch))
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, weight in weights.items():
        stored = weight[0] if "shared_expert_gate" in name else weight  # one row is a vector
        is_bare = name.endswith((".sinks", ".layer_scalar")) or (weight.ndim == 3 and name.endswith("_proj"))
        name += ".weight" if is_bare else ""
        if is_paired and ".q_proj." in name:
            stored = paired(weight, config["num_attention_heads"])
        if is_paired and ".k_proj." in name:
            stored = paired(weight, config["num_key_value_heads"])
        name = name.replace(".dt_bias", ".dt_proj.bias")
        if "conv_L_cache" in config and ".experts." not in name:
            name = hub_name(family, name).replace("expert_bias", "expert_bias.bias")
        new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if name.endswith((".router.scale", ".router.per_expert_scale")):
            new_name = f"blk.{name.split('.')[2]}.{'ffn_down_exps' if 'per' in name else 'ffn_gate_inp'}.scale"
        assert new_name is not None
        writer.add_tensor(new_name, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_gemma4(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> int:
    """What differs between layers, as llama.cpp's converter writes it; the size of a head that sees all keys."""
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    inner, shared, kv_heads = config["intermediate_size"], config["num_kv_shared_layers"], config["num_key_value_heads"]
    full_heads = config["num_global_key_value_heads"] if config["attention_k_eq_v"] else None
    wide = [config["use_double_wide_mlp"] and index >= len(sliding) - shared for index in range(len(sliding))]
    writer.add_feed_forward_length([inner * (1 + each) for each in wide] if any(wide) else inner)
    writer.add_head_count_kv([kv_heads if each else full_heads for each in sliding] if full_heads else kv_heads)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config.get("hidden_size_per_layer_input", 0))
    writer.add_sliding_window_pattern(sliding)
    for add in (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa):
        add(config["head_dim"])
    head_dim: int = config["global_head_dim"]
    turned = int(head_dim * config["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
    writer.add_tensor("rope_freqs.weight", np.array([1] * turned + [1e30] * (head_dim // 2 - turned), np.float32))
    return head_dim


def has_attention(config: Mapping[str, Any]) -> list[bool]:
    """Which layers of a model with short convolutions have attention."""
    if types := config.get("layer_types"):
        return [kind == "full_attention" for kind in types]
    return [index in config["full_attn_idxs"] for index in range(config["num_hidden_layers"])]


def rotary_part(config: Mapping[str, Any]) -> float:
    """The part of a head that RoPE turns."""
    default = 0.25 if "linear_num_key_heads" in config else 1.0
    return float(config["rope_parameters"].get("partial_rotary_factor", default))


def parted(
    name: str, weight: NDArray[np.float32], config: Mapping[str, Any]
) -> Iterable[tuple[str, NDArray[np.float32]]]:
    """in_proj_qkvz as llama.cpp's converter takes it apart; other weights as they are."""
    if "in_proj_qkvz" not in name:
        return [(name, weight)]
    heads, values = config["linear_num_key_heads"], config["linear_num_value_heads"] * config["linear_value_head_dim"]
    sizes = [config["linear_key_head_dim"]] * 2 + [values // heads] * 2
    groups = weight.reshape(heads, sum(sizes), -1)
    q, k, v, z = (each.reshape(-1, weight.shape[1]) for each in np.split(groups, np.cumsum(sizes)[:-1], axis=1))
    return [(name.replace("qkvz", "qkv"), np.concatenate((q, k, v))), (name.replace("qkvz", "z"), z)]


def hybrid(name: str, weight: NDArray[np.float32], config: Mapping[str, Any]) -> NDArray[np.float32]:
    """A weight of a model with delta nets, as llama.cpp's converter makes it.

    Norms hold 1 + weight, A_log holds -exp(A_log), filters have no axis of one, and value heads are tiled: those that
    read one key head stand apart.
    """
    if name.endswith("norm.weight") and "linear_attn" not in name:
        return weight + np.float32(1)
    if ".linear_attn." not in name or name.endswith("norm.weight"):
        return weight
    part, key_heads = name.rpartition(".linear_attn.")[2], config["linear_num_key_heads"]
    order = np.arange(config["linear_num_value_heads"])
    order = order if config["model_type"] == "qwen3_next" else order.reshape(key_heads, -1).T.reshape(-1)
    size = config["linear_value_head_dim"]
    rows = (order[:, None] * size + np.arange(size)).reshape(-1)
    keys = 2 * key_heads * config["linear_key_head_dim"]
    match part:
        case "A_log":
            return -np.exp(weight.astype(np.float64)).astype(np.float32)[order]
        case "dt_bias" | "in_proj_a.weight" | "in_proj_b.weight":
            return weight[order]
        case "in_proj_ba.weight":
            return weight
        case "in_proj_z.weight":
            return weight[rows]
        case "in_proj_qkv.weight":
            return np.concatenate((weight[:keys], weight[keys:][rows]))
        case "conv1d.weight":
            return np.concatenate((weight[:keys], weight[keys:][rows]))[:, 0]
        case "out_proj.weight":
            return np.ascontiguousarray(weight[:, rows])
    raise AssertionError(name)


def stacked(weights: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """The weights, of which those of all experts of a layer are one, as llama.cpp's converter makes it."""
    found: dict[str, list[NDArray[np.float32]]] = {}
    for name, weight in weights.items():  # experts in order of their numbers
        found.setdefault(re.sub(r"(\.experts\.)\d+\.", r"\1", name), []).append(weight)
    return {
        name: each[0] if each[0].ndim == 3 or ".experts." not in name else np.stack(each)
        for name, each in found.items()
    }


def _add_rope(writer: gguf.GGUFWriter, config: Mapping[str, Any], head_dim: int) -> None:
    rope = config["rope_parameters"]
    if "full_attention" in rope:
        if config["model_type"] != "olmo3":
            writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    theta, factor = rope["rope_theta"], rope.get("factor")
    writer.add_rope_freq_base(theta)
    match rope["rope_type"]:
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(factor)
        case "longrope":
            original = rope["original_max_position_embeddings"]
            writer.add_rope_scaling_orig_ctx_len(original)
            scale = config["max_position_embeddings"] / original
            writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(original))))
            for kind in ("long", "short"):
                writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], np.float32))
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(factor)
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            if "mscale_all_dim" in rope:
                writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        case "llama3":
            factors = []
            for frequency in 1 / theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim):
                wavelength, length = 2 * np.pi / frequency, rope["original_max_position_embeddings"]
                if wavelength < length / rope["high_freq_factor"]:
                    factors.append(1.0)
                elif wavelength > length / rope["low_freq_factor"]:
                    factors.append(factor)
                else:
                    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
                    smooth = (length / wavelength - low) / (high - low)
                    factors.append(1 / ((1 - smooth) / factor + smooth))
            writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
