"""Gemma 4 (Google, 2026): 31B, 26B-A4B with experts, and E2B and E4B, whose layers read each token's own numbers."""

from typing import Any

from karat.errors import ConfigError
from karat.models import gemma4s
from karat.models.family import Family
from karat.models.gemma4_files import GGUF
from karat.models.gemma4s import Gemma4Config
from karat.models.reader import ConfigReader

_SIZE, _VOCAB = "hidden_size_per_layer_input", "vocab_size_per_layer_input"


def read(reader: ConfigReader) -> Gemma4Config:
    """The configuration from a config.json of this family."""
    reader.assume(
        {**gemma4s.DEFAULTS, "sliding_window": 512, "max_position_embeddings": 131_072, _SIZE: 256, _VOCAB: 262_144}
    )
    return gemma4s.read(reader, **_read_inputs(reader), **_read_experts(reader))


def _read_inputs(reader: ConfigReader) -> dict[str, int]:
    own = reader.get(int, "vocab_size")
    size, vocab_size = reader.get(int, _SIZE, 0), reader.get(int, _VOCAB, own)
    if size < 0 or (size and vocab_size < own):
        raise ConfigError(
            f"{_SIZE}={size}, {_VOCAB}={vocab_size}: expected no negative number, and a row for each of {own} tokens"
        )
    return {_SIZE: size, _VOCAB: vocab_size}


def _read_experts(reader: ConfigReader) -> dict[str, Any]:
    has_experts = reader.get(bool, "enable_moe_block", False)
    keys = {"num_experts": "num_experts", "num_experts_per_tok": "top_k_experts"}
    keys["moe_intermediate_size"] = "moe_intermediate_size"
    stated = {name: reader.get(int, key, None if has_experts else 0) for name, key in keys.items()}
    return (stated if has_experts else dict.fromkeys(keys, 0)) | {"norm_topk_prob": True}


FAMILY = Family("gemma4_text", "Gemma4ForCausalLM", read, gemma4s.layer, GGUF, gemma4s.ends)
