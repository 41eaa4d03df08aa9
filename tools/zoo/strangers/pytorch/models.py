"""The checkpoints: small, random, saved as Hugging Face saves them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HUGE = 7  # the token of llama-huge with one huge feature
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def config(family: str, hidden: int, heads: int, kv_heads: int, layers: int, vocabulary: int, **more: Any) -> dict:
    return {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": family.lower(),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


MODELS = {
    "qwen2": config("Qwen2", 64, 4, 2, 3, 320, tie_word_embeddings=True, rms_norm_eps=1e-6, rope_theta=1e6),
    "llama": config("Llama", 64, 8, 4, 4, 256, rope_scaling=LLAMA3),
    "llama-bias": config("Llama", 48, 4, 4, 3, 240, attention_bias=True, mlp_bias=True),
    "llama-huge": config("Llama", 64, 8, 2, 3, 256, rope_theta=10000.0),
}


def tensors(name: str, seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    c = MODELS[name]
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    dim = hidden // c["num_attention_heads"]
    kv = c["num_key_value_heads"] * dim

    def normal(*shape: int, scale: float) -> torch.Tensor:
        return scale * torch.randn(*shape, generator=draw)

    made = {"model.embed_tokens.weight": normal(c["vocab_size"], hidden, scale=0.2)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for part, rows, columns in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            made[f"{at}{part}.weight"] = normal(rows, columns, scale=1.2 * columns**-0.5)
            attends = part.startswith("self_attn")
            of_qwen = name == "qwen2" and attends and "o_proj" not in part
            if of_qwen or c.get("attention_bias" if attends else "mlp_bias"):
                made[f"{at}{part}.bias"] = normal(rows, scale=0.3)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            made[f"{at}{norm}.weight"] = 1 + normal(hidden, scale=0.2)
    made["model.norm.weight"] = 1 + normal(hidden, scale=0.2)
    if not c["tie_word_embeddings"]:
        made["lm_head.weight"] = normal(c["vocab_size"], hidden, scale=hidden**-0.5)
    if name == "llama-huge":
        made["model.embed_tokens.weight"][HUGE, 5] = 400.0
    return made


def make(folder: Path, name: str, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODELS[name]), encoding="utf-8")
    save_file(tensors(name, seed), folder / "model.safetensors", metadata={"format": "pt"})
