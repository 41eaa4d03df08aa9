"""What Gemma 2 and 3 share: norms around each part, which multiply by 1 + weight, GELU, and a scaled embedding.

GGUF files store 1 + weight; `as_gguf` tells them apart from folders. Values V of these models do not fit float16.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import AS_GGUF, IN_LAYER, restated
from karat.checkpoint.weights import Weight
from karat.config import FloatName, LayerShape, ModelConfig
from karat.errors import ConfigError
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models.family import Ends
from karat.models.reader import ConfigReader, read_layer_windows, read_window

ACTIVATION = ("hidden_activation", "gelu_pytorch_tanh")  # a stated hidden_act may be another, and is not used
LEAST_KV_DTYPE: FloatName = "float32"
# Of the format: text_config often leaves these keys out.
DEFAULTS: Mapping[str, object] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
TENSORS: Mapping[str, str] = {
    **IN_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
QK_NORMS: Mapping[str, str] = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
FINAL_CAP, ATTENTION_CAP = "final_logit_softcapping", "attn_logit_softcapping"


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaConfig(ModelConfig):
    """Adds what q is divided by the root of, the cap of logits (0: none), biases, and how norms are stored."""

    query_pre_attn_scalar: float
    final_logit_softcapping: float
    attention_bias: bool
    as_gguf: bool


def layer(
    place: Place, config: GemmaConfig, shape: LayerShape, *, normed: bool = False, cap: float | None = None
) -> Block:
    """A layer of this shape, with a cap of scores; q and k may be `normed`."""
    size, eps, bias, plus_one = config.hidden_size, config.rms_norm_eps, config.attention_bias, not config.as_gguf
    attention = Attention(
        place / "self_attn",
        size,
        shape,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm_eps=eps if normed else None,
        plus_one=plus_one,
        scale=config.query_pre_attn_scalar**-0.5,
        cap=cap,
    )
    mlp = GatedMLP(place / "mlp", size, shape.inner_size, activation="gelu")
    before, after, between, last = (
        RMSNorm(place / f"{name}_layernorm", size, eps, plus_one=plus_one)
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward")
    )
    return Block(place.name, Branch(before, attention, after), Branch(between, mlp, last))


def ends(config: GemmaConfig) -> Ends:
    """The embedding is multiplied by the root of its width, which is rounded to float32 in float64, too."""
    return Ends(
        embedding_scale=float(np.float32(config.hidden_size**0.5)),
        head_cap=config.final_logit_softcapping or None,
        norm_plus_one=not config.as_gguf,
    )


def read(reader: ConfigReader) -> dict[str, Any]:
    """The keys that both have, as fields of a GemmaConfig."""
    reader.raw("hidden_act")
    reader.raw("cache_implementation")  # of transformers
    reader.must_be("use_bidirectional_attention", False, why="a token sees no later one")
    scalar = reader.get(float, "query_pre_attn_scalar")
    if not scalar > 0:
        raise ConfigError(f"query_pre_attn_scalar={scalar}: expected a number above 0")
    return {
        "query_pre_attn_scalar": scalar,
        FINAL_CAP: read_cap(reader, FINAL_CAP),
        "attention_bias": reader.get(bool, "attention_bias", False),
        "as_gguf": reader.get(bool, AS_GGUF, False),
    }


def read_cap(reader: ConfigReader, key: str) -> float:
    """A cap; 0 is none."""
    cap = reader.get(float, key, 0.0)
    if cap < 0:
        raise ConfigError(f"{key}={cap}: expected a number above 0, or null")
    return cap


def read_windows(reader: ConfigReader, every: int) -> tuple[int | None, ...]:
    """The windows of the layers, of which each `every`th has none if the file does not say which."""
    num_layers, window = reader.get(int, "num_hidden_layers"), read_window(reader)
    if every < 1:
        raise ConfigError(f"sliding_window_pattern={every}: expected a positive number of layers")
    kinds = "sliding_attention" if window else "full_attention", "full_attention"
    types = [kinds[(index + 1) % every == 0] for index in range(num_layers)]
    return read_layer_windows(reader, num_layers, window, types)


def own_config(metadata: Metadata, arch: str, largest: int, window: int) -> dict[str, Any]:
    """What a GGUF file states in another way than config.json.

    With `largest` layers q is divided by another root. `window` is that of a file that states none; 0 is none at all.
    """
    stated, num_layers = (
        metadata.get(int, f"{arch}.{key}", default)
        for key, default in (("attention.sliding_window", window), ("block_count", None))
    )
    hidden, heads = (metadata.get(int, f"{arch}.{key}") for key in ("embedding_length", "attention.head_count"))
    by_heads = num_layers == largest and heads > 0
    head_dim = metadata.get(int, f"{arch}.attention.key_length", 256)
    return {
        AS_GGUF: True,
        "query_pre_attn_scalar": hidden / heads if by_heads else head_dim,
        "sliding_window": stated or None,
    }


def as_stored(config: GemmaConfig, weight: Weight) -> Weight:
    """A weight as GGUF files have it."""
    if config.as_gguf or not weight.name.endswith("norm.weight"):
        return weight
    return restated(weight, lambda values: values + np.float32(1))


def written(config: GemmaConfig) -> dict[str, int]:
    """The window, though it may be longer than a context: RoPE differs by it."""
    return {"attention.sliding_window": next((window for window in config.layer_windows if window), 0)}


def not_in_gguf(config: GemmaConfig, every: int, largest: int) -> str | None:
    """Why a GGUF file cannot state a model."""
    windows = config.layer_windows
    in_turns = all((window is None) != bool((index + 1) % every) for index, window in enumerate(windows))
    if any(windows) and not in_turns:
        return f"layers without a window in other places than each {every}th"
    usual = config.hidden_size / config.num_heads if config.num_layers == largest else config.head_dim
    if config.query_pre_attn_scalar != usual:
        return f"query_pre_attn_scalar={config.query_pre_attn_scalar:g}; expected {usual:g}"
    return None
