"""Small random models of the families that GGUF holds, as Hugging Face folders: the same bits on every machine.

So a test can repeat the model that llama.cpp once quantised. No draw depends on a library's logarithm or on a stream
that NumPy may change: weights are sums of integers from NumPy's frozen generator, scaled with one rounding.
"""

import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from karat.models.decoder import weight_specs
from karat.models.registry import read_config
from karat.text.pre_tokenizers import PRE_TOKENIZERS

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"tie_word_embeddings": True, "rms_norm_eps": 1e-6},
    "llama": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral": {"sliding_window": None, "rope_theta": 1000000.0},
    "lfm2": {
        "rms_norm_eps": None,
        "norm_eps": 1e-5,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1, 4, 7, 9, 11, 13],
        "tie_word_embeddings": True,
    },
}
_PRE_TOKENIZER: Mapping[str, str] = {
    "qwen2": "qwen2",
    "qwen3": "qwen2",
    "llama": "llama-bpe",
    "mistral": "tekken",
    "lfm2": "lfm2",
}
_CHARACTERS = (*string.ascii_lowercase, "Ġ", "Ċ", ".", ",")
_SPECIAL = ("<|bos|>", "<|eos|>")
VOCABULARY = 40

# Rows of 256 take every block format; those of down_proj, and of most families' o_proj, fall back to smaller blocks.
SMALL: Mapping[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
_FILLED = ("lfm2", "qwen2")  # of which llama.cpp wants heads to fill the hidden size
_SMALL_FILLED = SMALL | {"num_attention_heads": 16}
MEDIUM: Mapping[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def make_folder(path: Path, family: str, size: Mapping[str, Any] = SMALL, seed: int = 0) -> Path:
    """A new folder with config.json, tokenizer.json and float32 weights of a model of this family and size."""
    config = make_config(family, size)
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(_tokenizer(family).to_str())
    random = np.random.RandomState(seed)
    specs = {spec.source: (spec.stored or (spec.shape,))[0] for spec in weight_specs(read_config(config))}
    weights = {name: _draw(random, name, shape) for name, shape in specs.items()}
    save_file(weights, path / "model.safetensors")
    return path


def make_config(family: str, size: Mapping[str, Any] = SMALL) -> dict[str, Any]:
    """The config.json of a model of this family and size."""
    return {
        "model_type": family,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": len(_CHARACTERS),
        "eos_token_id": len(_CHARACTERS) + 1,
        **FAMILIES[family],
        **(_SMALL_FILLED if family in _FILLED and size is SMALL else size),
        **({"num_hidden_layers": 1} if family == "qwen2" and size is SMALL else {}),
    }


def prompt(num_tokens: int = 28, seed: int = 1) -> list[int]:
    """Token ids of characters, drawn."""
    return [int(token) for token in np.random.RandomState(seed).randint(0, len(_CHARACTERS), num_tokens)]


def _draw(random: np.random.RandomState, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """About normal: matrices so that logits and attention are far from flat, vectors around 1 (norms) or 0 (biases)."""
    total = random.randint(0, 4096, (4, *shape)).sum(axis=0) - 2 * 4095
    unit = total.astype(np.float32) / np.float32(2365)  # a deviation of 1
    if len(shape) == 1:
        return unit * np.float32(0.125) + np.float32("norm" in name)
    deviation = 0.125 if "embed" in name else 1.5 / np.sqrt(shape[1])
    return unit * np.float32(deviation)


def _tokenizer(family: str) -> Backend:
    tokens = [*_CHARACTERS, *_SPECIAL, "th", "he", "in", "the", "Ġt", "er", "an", "re"]
    assert len(tokens) == VOCABULARY
    merges = [("t", "h"), ("h", "e"), ("i", "n"), ("th", "e"), ("Ġ", "t"), ("e", "r"), ("a", "n"), ("r", "e")]
    kind = PRE_TOKENIZERS[_PRE_TOKENIZER[family]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocabulary, merges, ignore_merges=kind.takes_whole))
    if (normalizer := kind.normalizer()) is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = kind.build()
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    return backend
