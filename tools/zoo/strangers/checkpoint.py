"""Small random models of Qwen2 and Llama as Hugging Face folders: config.json and model.safetensors."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

Weights = dict[str, np.ndarray]

# What all families share. 390 is no multiple of 4: the last rank's shard of the vocabulary is shorter.
COMMON: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 390,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
QWEN2 = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "use_sliding_window": False,
    "sliding_window": 6,
    "max_window_layers": 4,
    "tie_word_embeddings": True,
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 96,
    "head_dim": 16,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": COMMON | QWEN2,
    "qwen2-untied": COMMON | QWEN2 | {"tie_word_embeddings": False, "hidden_size": 64, "num_attention_heads": 4},
    "llama": COMMON | LLAMA | LLAMA3,
    "llama-massive": COMMON | LLAMA | LLAMA3,
    "llama-tied": COMMON | LLAMA | {"tie_word_embeddings": True, "rope_theta": 10000.0, "head_dim": 32},
    "llama-deep": COMMON | LLAMA | {"num_hidden_layers": 12, "hidden_size": 64, "intermediate_size": 64},
}
MASSIVE = 7  # of llama-massive: a token whose embedding has one huge feature, as first tokens have in large models


@dataclass(frozen=True)
class Config:
    """What the engine reads of config.json."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float
    theta: float
    scaling: dict[str, float] | None
    tied: bool
    biases: bool  # of q, k and v
    window: int | None  # stated in the file; used only if `use_window`
    use_window: bool

    @classmethod
    def read(cls, folder: Path) -> "Config":
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return cls(
            raw["hidden_size"],
            raw["intermediate_size"],
            raw["num_hidden_layers"],
            raw["num_attention_heads"],
            raw["num_key_value_heads"],
            raw.get("head_dim", raw["hidden_size"] // raw["num_attention_heads"]),
            raw["vocab_size"],
            raw["rms_norm_eps"],
            raw["rope_theta"],
            raw.get("rope_scaling"),
            raw["tie_word_embeddings"],
            raw["model_type"] == "qwen2",
            raw.get("sliding_window"),
            raw.get("use_sliding_window", False),
        )


def make(folder: Path, name: str, seed: int) -> Path:
    """A random model. Weights have the size that products keep; embeddings are small, as they are in real models."""
    raw, rng = MODELS[name], np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw, indent=1), encoding="utf-8")
    config = Config.read(folder)

    def matrix(rows: int, columns: int, size: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * size / columns**0.5).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.3 * rng.standard_normal(config.hidden)).astype(np.float32)

    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    embedding = matrix(config.vocabulary, config.hidden, 0.02 * config.hidden**0.5)
    if name == "llama-massive":
        embedding[MASSIVE, 5] = 320
    weights: Weights = {"model.embed_tokens.weight": embedding}
    for i in range(config.layers):
        at = f"model.layers.{i}."
        weights[at + "input_layernorm.weight"] = norm()
        for part, rows, size in (("q", q, 1.5), ("k", kv, 1.5), ("v", kv, 1.0)):
            weights[at + f"self_attn.{part}_proj.weight"] = matrix(rows, config.hidden, size)
            if config.biases:
                bias = 0.5 * rng.standard_normal(rows)
                weights[at + f"self_attn.{part}_proj.bias"] = bias.astype(np.float32)
        weights[at + "self_attn.o_proj.weight"] = matrix(config.hidden, q, 0.5)
        weights[at + "post_attention_layernorm.weight"] = norm()
        weights[at + "mlp.gate_proj.weight"] = matrix(config.inner, config.hidden)
        weights[at + "mlp.up_proj.weight"] = matrix(config.inner, config.hidden)
        weights[at + "mlp.down_proj.weight"] = matrix(config.hidden, config.inner)
    weights["model.norm.weight"] = norm()
    if not config.tied:
        weights["lm_head.weight"] = matrix(config.vocabulary, config.hidden)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def read_weights(folder: Path) -> Weights:
    """All tensors by their names in the file."""
    return load_file(folder / "model.safetensors")
