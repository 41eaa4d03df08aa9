"""Granite 3 and 4, the dense ones (IBM, 2024 to 2026): Llama's layers with four multipliers."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import IN_LAYER, GgufForm, has_bias
from karat.errors import ConfigError
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models.family import Ends, Family, read_decoder
from karat.models.llama import LlamaConfig
from karat.models.reader import ConfigReader, read_layer_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteConfig(LlamaConfig):
    """Adds multipliers: of the embedding, of scores (in place of head_dim^-½), of what a branch adds to x.

    Logits are divided by `logits_scaling`.
    """

    embedding_multiplier: float
    attention_multiplier: float
    residual_multiplier: float
    logits_scaling: float


def layer(place: Place, config: GraniteConfig, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, bias, shape = config.hidden_size, config.rms_norm_eps, config.attention_bias, config.shape(index)
    attention_norm = RMSNorm(place / "input_layernorm", size, eps)
    attention = Attention(
        place / "self_attn", size, shape, qkv_bias=bias, o_bias=bias, scale=config.attention_multiplier
    )
    mlp_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    mlp = GatedMLP(place / "mlp", size, shape.inner_size, bias=config.mlp_bias)
    times = config.residual_multiplier
    return Block(
        place.name, Branch(attention_norm, attention, multiplier=times), Branch(mlp_norm, mlp, multiplier=times)
    )


def ends(config: GraniteConfig) -> Ends:
    """What is multiplied before the first layer and after the last norm."""
    return Ends(embedding_scale=config.embedding_multiplier, head_scale=1 / config.logits_scaling)


def read(reader: ConfigReader) -> GraniteConfig:
    """The configuration from a config.json of this family."""
    num_layers, num_heads = reader.get(int, "num_hidden_layers"), reader.get(int, "num_attention_heads")
    logits_scaling = reader.get(float, "logits_scaling", 1.0)
    if not logits_scaling > 0:
        raise ConfigError(f"logits_scaling={logits_scaling}: expected a number above 0, as logits are divided by it")
    return read_decoder(
        reader,
        GraniteConfig,
        layer_windows=read_layer_windows(reader, num_layers, None, ["full_attention"] * num_layers),
        num_kv_heads=reader.get(int, "num_key_value_heads", num_heads),
        head_dim=reader.optional(int, "head_dim"),
        attention_bias=reader.get(bool, "attention_bias", False),
        mlp_bias=reader.get(bool, "mlp_bias", False),
        embedding_multiplier=reader.get(float, "embedding_multiplier", 1.0),
        attention_multiplier=reader.get(float, "attention_multiplier", 1.0),
        residual_multiplier=reader.get(float, "residual_multiplier", 1.0),
        logits_scaling=logits_scaling,
    )


def _own_config(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    if not metadata.get(float, "granite.attention.scale", 0.0):
        raise ConfigError("granite.attention.scale is missing, or 0; expected the factor of the scores; convert again")
    return {"attention_bias": has_bias(names, ".self_attn."), "mlp_bias": has_bias(names, ".mlp.")}


GGUF: GgufForm[GraniteConfig] = GgufForm(
    architecture="granite",
    in_layer=IN_LAYER,
    paired=("self_attn.q_proj", "self_attn.k_proj"),
    numbers={
        "embedding_scale": "embedding_multiplier",
        "attention.scale": "attention_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    },
    own_config=_own_config,
)
FAMILY = Family("granite", "GraniteForCausalLM", read, layer, GGUF, ends)
