"""Golden digests: SHA-256 of the logits of fixed models, so that a change of code that changes one bit is seen.

`python -m tests.support.golden` prints the contents of tests/data/golden_logits.json. The file is made anew only when
the numeric contract changes (docs/determinism.md).
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from karat import LLM
from karat.models.decoder import weight_specs
from karat.models.registry import Model, build, read_config
from karat.ops import registry
from karat.quant import FORMATS
from tests.support.forward import run
from tests.support.parallel import config_of
from tests.support.weights import weight_of

COMPUTED_AS_STORED = (
    "F32",
    "F16",
    "BF16",
    "E4M3",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
)
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"attention_bias": False},
    "llama": {
        "mlp_bias": True,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral": {"sliding_window": 20},
    "gemma2": {"sliding_window": 20, "attention_bias": True, "query_pre_attn_scalar": 128},
    "gemma3_text": {
        "sliding_window": 20,
        "sliding_window_pattern": 2,
        "final_logit_softcapping": 2.0,
        "query_pre_attn_scalar": 128,
    },
    "exaone4": {"sliding_window": 20, "sliding_window_pattern": 2, "tie_word_embeddings": False},
    "gemma4_text": {
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention"],
        "attention_k_eq_v": True,
        "moe_intermediate_size": 128,
    },
    "gemma4_unified_text": {"num_kv_shared_layers": 1, "attention_bias": True},
    "seed_oss": {"attention_out_bias": True, "mlp_bias": True},
    "smollm3": {"no_rope_layers": [1, 0], "tie_word_embeddings": False},
    "granite": {"attention_bias": True},
    "lfm2": {"conv_bias": True, "conv_L_cache": 4},
    "lfm2_moe": {"moe_intermediate_size": 128, "routed_scaling_factor": 1.5},
    "ministral3": {"sliding_window": 20},
    "gpt_oss": {"swiglu_limit": 2.0, "sliding_window": 20},
    "mixtral": {"tie_word_embeddings": False},
    "muse_glimmer_text": {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]},
    "olmo2": {"attention_bias": True},
    "phi3": {"partial_rotary_factor": 0.5, "tie_word_embeddings": False},
    "olmo3": {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]},
    "olmoe": {"norm_topk_prob": True},
    "qwen2_moe": {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 512},
    "qwen3_moe": {"mlp_only_layers": [1], "moe_intermediate_size": 128},
    "qwen3_5_text": {},
    "qwen3_5_moe_text": {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 512},
    "qwen3_next": {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 512, "norm_topk_prob": False},
}
PROMPT_LENS = (70, 9, 1)


def cases() -> Iterator[tuple[str, str]]:
    """(family, stored type): each family in its most common type, and each stored type in one family."""
    for family in FAMILIES:
        for stored in ("F32", "Q4_0"):
            yield family, stored
    for stored in COMPUTED_AS_STORED:
        if stored not in ("F32", "Q4_0"):
            yield "qwen2", stored


def model_of(family: str, stored: str, **options: Any) -> Model:
    """The model on an executor with these options (karat.ops.registry.create)."""
    config = read_config(
        config_of(
            family,
            vocab_size=300,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            **FAMILIES[family],
        )
    )
    ops = registry.create("auto" if "device" in options else "native", "float32", options)
    return build(config, ops, _weights(config, stored), num_positions=128)


def digest_of(family: str, stored: str, **options: Any) -> str:
    """The digest of the logits of three prompts, computed together in chunks of 33 with a float16 cache."""
    model = model_of(family, stored, **options)
    return _digest(*run(model, _prompts(model.config.vocab_size), chunk=33, kv_dtype="float16"))


def embedded_digest() -> str:
    """The digest of the embedded model's logits."""
    llm = LLM(executor="native", threads=1)
    return _digest(*(llm.logits(prompt) for prompt in _prompts(llm.config.vocab_size)))


def all_digests() -> dict[str, str]:
    return {"embedded": embedded_digest()} | {f"{f} {s}": digest_of(f, s, threads=1) for f, s in cases()}


def _prompts(vocab_size: int) -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, vocab_size, n).tolist() for n in PROMPT_LENS]


def _weights(config: Any, stored: str) -> Any:
    """Every weight from integers of a fixed generator, so that no release of NumPy draws other numbers."""
    weights = {}
    for number, spec in enumerate(weight_specs(config)):
        rng = np.random.Generator(np.random.PCG64(number))
        values = rng.integers(-(2**20), 2**20, spec.shape).astype(np.float32) / 2**20
        if len(spec.shape) == 1:
            values = -4 * np.abs(values) if spec.source.endswith("A_log") else values / 4 + ("norm" in spec.source)
            values = values.reshape(spec.stored[-1]) if spec.stored else values
            weights[spec.source] = weight_of(values, "F32", spec.source)
        else:
            values = values / 8
            fits = stored not in FORMATS or spec.shape[-1] % FORMATS[stored].block_size == 0
            weights[spec.source] = weight_of(values, stored if fits else "F32", spec.source)
    return SimpleNamespace(path=Path("in-memory"), weights=weights)


def _digest(*arrays: Any) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        assert array.dtype == np.float32 and np.isfinite(array).all(), "logits of a golden model are finite float32"
        digest.update(np.ascontiguousarray(array, "<f4").tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print(json.dumps(all_digests(), indent=1))
