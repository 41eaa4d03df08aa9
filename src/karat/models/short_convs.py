"""What families share whose layers are short convolutions and, here and there, attention: those of LFM2."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import IN_LAYER, has_bias
from karat.config import ModelConfig
from karat.errors import ConfigError
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.mixer import Mixer
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.layers.short_conv import ShortConv
from karat.models.reader import ConfigReader
from karat.request import shown

EPS = "norm_eps"  # what config.json calls the norms' epsilon
_KV_HEADS = "kv_heads_by_layer"  # a key that no folder has: of a GGUF file, with 0 for convolutions

# Of GGUF: a layer's tensors, one of no layer, and keys.
TENSORS = {
    **IN_LAYER,
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
}
TOP = {"token_embd_norm.weight": "model.norm.weight"}
OWN_KEYS = ("shortconv.l_cache",)
BY_LAYER = {"attention.head_count_kv": _KV_HEADS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """Which layers are convolutions, how many tokens one reads, and whether it and its projections have biases."""

    layers: tuple[int, ...]
    taps: int
    bias: bool


def block(place: Place, config: ModelConfig, convs: ConvShape, index: int, mlp: Mixer) -> Block:
    """Layer `index` at `place`, with this MLP."""
    size, eps = config.hidden_size, config.rms_norm_eps
    mixer: Mixer
    if index in convs.layers:
        mixer = ShortConv(place / "conv", size, convs.taps, bias=convs.bias)
    else:
        mixer = Attention(place / "self_attn", size, config.shape(index), qk_norm_eps=eps)
    before, between = (RMSNorm(place / f"{part}_layernorm", size, eps) for part in ("input", "post_attention"))
    return Block(place.name, Branch(before, mixer), Branch(between, mlp))


def read(reader: ConfigReader) -> ConvShape:
    """The keys of config.json about convolutions."""
    size = reader.get(int, "hidden_size")
    for key in ("conv_dim", "conv_dim_out"):
        reader.must_be(key, size, why=f"convolutions are as wide as the model, whose hidden_size is {size}")
    reader.must_be("use_pos_enc", True, why="attention of this type has RoPE")
    reader.raw("conv_use_xavier_init")  # of training
    taps = reader.get(int, "conv_L_cache", 3)
    if taps < 2:
        raise ConfigError(f"conv_L_cache={taps}: expected 2 taps or more")
    return ConvShape(layers=_read_layers(reader), taps=taps, bias=reader.get(bool, "conv_bias", False))


def read_tied(reader: ConfigReader) -> bool:
    """Whether the head is the embedding; it is where nothing is stated."""
    tied, old = reader.optional(bool, "tie_word_embeddings"), reader.optional(bool, "tie_embedding")
    if tied is not None and old is not None and tied != old:
        raise ConfigError(f"tie_word_embeddings={tied} and tie_embedding={old} disagree: keep the correct one")
    return next((each for each in (tied, old) if each is not None), True)


def _read_layers(reader: ConfigReader) -> tuple[int, ...]:
    """The layers that are convolutions: those of layer_types, else all but those of full_attn_idxs."""
    num_layers = reader.get(int, "num_hidden_layers")
    types, attention, kv_heads = map(reader.raw, ("layer_types", "full_attn_idxs", _KV_HEADS))
    if isinstance(kv_heads, list):
        types = ["full_attention" if heads else "conv" for heads in kv_heads]
    if types is None:
        attention = list(range(num_layers)) if attention is None else attention
        if not isinstance(attention, list) or not all(type(index) is int for index in attention):
            raise ConfigError(f"full_attn_idxs={shown(attention)}: expected a list of layers, which are integers")
        return tuple(index for index in range(num_layers) if index not in attention)
    if not isinstance(types, list) or len(types) != num_layers:
        raise ConfigError(f"layer_types={shown(types)}: expected a list of {num_layers} types, one a layer")
    for index, kind in enumerate(types):
        if kind not in ("conv", "full_attention"):
            raise ConfigError(f"layer_types[{index}]={shown(kind)} is not supported: expected conv or full_attention")
    return tuple(index for index, kind in enumerate(types) if kind == "conv")


def own_config(metadata: Metadata, names: Collection[str], architecture: str) -> dict[str, Any]:
    """What a GGUF file states in another way than config.json."""
    return {
        EPS: metadata.get(float, f"{architecture}.attention.layer_norm_rms_epsilon"),
        "rms_norm_eps": None,
        "conv_L_cache": metadata.get(int, f"{architecture}.shortconv.l_cache"),
        "conv_bias": has_bias(names, ".conv."),
    }


def written(config: ModelConfig, convs: ConvShape) -> dict[str, int | Sequence[int]]:
    """The numbers of a GGUF file's metadata that only these architectures have."""
    kv_heads = [0 if index in convs.layers else shape.num_kv_heads for index, shape in enumerate(config.shapes)]
    return {"attention.head_count_kv": kv_heads, "shortconv.l_cache": convs.taps}


def not_in_gguf(config: ModelConfig, convs: ConvShape) -> str | None:
    """Why a GGUF file cannot state a model."""
    return "a model without attention" if len(convs.layers) == config.num_layers else None


def not_in_llama_cpp(config: ModelConfig, convs: ConvShape) -> str | None:
    """Why llama.cpp does not load a model."""
    shape = config.shape(0)
    if shape.num_heads * shape.head_dim != config.hidden_size:
        return "heads that are not as wide together as the model"
    return "biases of short convolutions" if convs.bias else None
