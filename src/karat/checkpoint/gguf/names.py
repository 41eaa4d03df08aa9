"""GGUF's names of tensors and architectures beside Hugging Face's, and the order of rows that GGUF changes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROPE_FACTORS = "rope_freqs.weight"

_TOP: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_TOP = {canonical: name for name, canonical in _TOP.items()}
_GGUF_IN_LAYER = {canonical: name for name, canonical in _IN_LAYER.items()}
_GGUF_NAME = re.compile(r"blk\.(0|[1-9]\d{0,8})\.(\w+)\.(weight|bias)", re.ASCII)
_CANONICAL = re.compile(r"model\.layers\.(0|[1-9]\d{0,8})\.([\w.]+)\.(weight|bias)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Architecture:
    """How GGUF holds a family. `pairs_rows`: the halves that RoPE turns together are neighbouring rows of Q and K."""

    name: str
    model_type: str
    pairs_rows: bool


ARCHITECTURES: Mapping[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        Architecture("llama", "llama", pairs_rows=True),
        Architecture("qwen2", "qwen2", pairs_rows=False),
        Architecture("qwen3", "qwen3", pairs_rows=False),
    )
}
# Mistral's files are llama's: its window, which GGUF then lacks, apart, the two are one architecture.
WRITTEN_AS: Mapping[str, str] = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


def canonical_name(name: str) -> str | None:
    """The Hugging Face name of GGUF's `name`; None if it is none that a supported family has."""
    if name in _TOP:
        return _TOP[name]
    if (match := _GGUF_NAME.fullmatch(name)) and match[2] in _IN_LAYER:
        return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"
    return None


def gguf_name(canonical: str) -> str | None:
    """The inverse of `canonical_name`."""
    if canonical in _GGUF_TOP:
        return _GGUF_TOP[canonical]
    if (match := _CANONICAL.fullmatch(canonical)) and match[2] in _GGUF_IN_LAYER:
        return f"blk.{match[1]}.{_GGUF_IN_LAYER[match[2]]}.{match[3]}"
    return None


def is_paired(canonical: str) -> bool:
    """Whether an architecture that pairs rows does so in this tensor."""
    return ".self_attn.q_proj." in canonical or ".self_attn.k_proj." in canonical


def paired_rows(num_rows: int, head_dim: int) -> NDArray[np.intp]:
    """For each row of Hugging Face's Q or K, the row that holds it where rows are paired.

    Hugging Face turns row j of a head with row j + head_dim / 2; paired, they are rows 2 j and 2 j + 1.
    """
    order = np.arange(num_rows, dtype=np.intp).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
    order.flags.writeable = False
    return order
