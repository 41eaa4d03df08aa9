"""Mistral (arXiv 2310.06825): a sliding window on every layer (null in later releases), explicit head_dim."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import IN_LAYER, GgufForm, has_bias, stated_window
from karat.config import ModelConfig
from karat.errors import ConfigError
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models.family import Family, read_decoder
from karat.models.reader import ConfigReader, read_layer_windows, read_num_kv_heads, read_window

_DEFAULT_WINDOW = 4096  # tokens; the architecture's default where a file lacks the key. null means no window
# Sizes of Mistral 7B v0.1, by GGUF's keys.
_FIRST_SIZES: Mapping[str, object] = {
    "block_count": 32,
    "embedding_length": 4096,
    "feed_forward_length": 14336,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "rope.freq_base": 10000.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MistralConfig(ModelConfig):
    """Adds nothing."""


def layer(place: Place, config: MistralConfig, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, shape = config.hidden_size, config.rms_norm_eps, config.shape(index)
    attention_norm = RMSNorm(place / "input_layernorm", size, eps)
    attention = Attention(place / "self_attn", size, shape)
    mlp_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    mlp = GatedMLP(place / "mlp", size, shape.inner_size)
    return Block(place.name, Branch(attention_norm, attention), Branch(mlp_norm, mlp))


def read(reader: ConfigReader) -> MistralConfig:
    """The configuration from a config.json of this family."""
    num_layers = reader.get(int, "num_hidden_layers")
    window = read_window(reader, _DEFAULT_WINDOW)
    everywhere = "full_attention" if window is None else "sliding_attention"
    reader.must_be("layer_types", [everywhere] * num_layers, why="mistral has its window on all layers or none")
    return read_decoder(
        reader,
        MistralConfig,
        layer_windows=read_layer_windows(reader, num_layers, window, [everywhere] * num_layers),
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=reader.optional(int, "head_dim"),
    )


def _own_config(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    window = stated_window(metadata, "llama")
    if has_bias(names, ""):
        raise ConfigError(
            f"llama.attention.sliding_window={window}: expected a window only in llama's architecture without biases, "
            "as Mistral has it"
        )
    return {"sliding_window": window}


def _doubt(metadata: Metadata) -> str | None:
    """A warning for a file without a window that names Mistral, or has the sizes of its first release.

    Later releases of Mistral have no window and another base of RoPE; Ministral has that base and windows. Models
    derived from the first release have its sizes.
    """
    if "llama.attention.sliding_window" in metadata:
        return None
    is_later = metadata.get(float, "llama.rope.freq_base", 10000.0) != 10000.0
    stated = (value for key, value in metadata.values.items() if key.startswith("general.") and isinstance(value, str))
    sizes = [metadata.values.get(f"llama.{key}") for key in _FIRST_SIZES]
    names = "ministral" if is_later else "mi(ni)?stral"
    if not any(re.search(names, text.lower()) for text in stated) and sizes != [*_FIRST_SIZES.values()]:
        return None
    return (
        "this looks like a Mistral model, and the file states no sliding window (Mistral 7B v0.1 has one of "
        "4096 tokens); Karat computes without, as llama.cpp does: longer contexts differ from the original"
    )


GGUF: GgufForm[MistralConfig] = GgufForm(
    architecture="llama",
    in_layer=IN_LAYER,
    paired=("self_attn.q_proj", "self_attn.k_proj"),
    has_window=True,
    claims=lambda metadata: stated_window(metadata, "llama") > 0,
    own_config=_own_config,
    doubt=_doubt,
    finer_values=lambda config: config.num_layers == 80 and config.num_heads != config.num_kv_heads,
)
FAMILY = Family("mistral", "MistralForCausalLM", read, layer, GGUF)
