"""The contents of tests/data/llama_cpp, which tools/peers/record.py wrote, and their form. Needs no llama.cpp."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf

DATA = Path(__file__).parents[2] / "tests" / "data" / "llama_cpp"
NUM_GREEDY = 24
PREFIX_LEN = 8  # of the prompt, which it continues greedily
PLAIN = ("F16", "BF16")
# The qwen2 model is the largest, so fewer types of it are kept.
STORED: Mapping[str, tuple[str, ...]] = {
    "qwen2": ("Q4_K_M", "Q4_0"),
    "qwen3": ("Q5_K_M", "Q2_K", "IQ4_XS", "Q8_0"),
    "llama": ("Q6_K", "Q3_K_M", "Q4_1", "Q5_1"),
    "mistral": ("Q4_K_S", "IQ4_NL", "Q5_0", "IQ3_S"),
    "lfm2": ("Q4_K_M",),
}
# Shapes on which llama.cpp's rules differ; the sizes of everything else do not matter to them.
_TINY = {
    "head_dim": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "hidden_size": 256,
    "intermediate_size": 256,
}
MIXED_MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama 32": ("llama", _TINY | {"num_hidden_layers": 32}),
    "mistral 32": ("mistral", _TINY | {"num_hidden_layers": 32, "num_attention_heads": 4}),
    "qwen3 28 tied": ("qwen3", _TINY | {"num_hidden_layers": 28}),
    "qwen3 9 untied": ("qwen3", _TINY | {"num_hidden_layers": 9, "tie_word_embeddings": False}),
    "llama 80, heads shared": ("llama", _TINY | {"num_hidden_layers": 80, "num_attention_heads": 8}),
    "llama 80, heads not shared": ("llama", _TINY | {"num_hidden_layers": 80, "num_key_value_heads": 2}),
    "llama 17, three heads share": ("llama", _TINY | {"num_hidden_layers": 17, "num_attention_heads": 3}),
    "qwen2 80, heads not shared": (
        "qwen2",
        _TINY | {"num_hidden_layers": 80, "num_attention_heads": 16, "num_key_value_heads": 16},
    ),
    "rows of 96 and 160": ("qwen3", _TINY | {"num_hidden_layers": 4, "hidden_size": 96, "intermediate_size": 160}),
    "lfm2 16": ("lfm2", _TINY | {"num_hidden_layers": 16, "num_attention_heads": 16}),
    "rows of 80": ("llama", _TINY | {"num_hidden_layers": 4, "hidden_size": 80, "intermediate_size": 256}),
}


def tensor_types(path: Path) -> dict[str, str]:
    """GGUF's names of the tensors to the names of their types."""
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}


def by_type(types: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The same, shorter: type to kind of tensor to its layers."""
    short: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, kind in types.items():
        parts = name.split(".")
        layer = parts.pop(1) if parts[0] == "blk" else ""
        short[kind][".".join(parts)].append(layer)
    return {kind: {name: _ranges(layers) for name, layers in found.items()} for kind, found in short.items()}


def _ranges(layers: Sequence[str]) -> str:
    """Layers, in order, as 0-3 5 7-9; nothing for a tensor that is in none."""
    runs: list[list[int]] = []
    for layer in map(int, filter(None, layers)):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], layer]
        else:
            runs.append([layer])
    return " ".join("-".join(map(str, run)) for run in runs)


def digest_of(path: Path) -> str:
    """SHA-256 of the names, types and bytes of all tensors."""
    total = hashlib.sha256()
    for tensor in sorted(gguf.GGUFReader(path).tensors, key=lambda tensor: tensor.name):
        total.update(f"{tensor.name} {tensor.tensor_type.name} ".encode() + tensor.data.tobytes())
    return total.hexdigest()
