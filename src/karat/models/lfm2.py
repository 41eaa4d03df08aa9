"""LFM2 and 2.5 (Liquid AI), dense: most layers are short convolutions, the others attention with norms of q and k."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import GgufForm
from karat.config import ModelConfig
from karat.errors import ConfigError
from karat.layers.block import Block
from karat.layers.mlp import GatedMLP
from karat.layers.place import Place
from karat.models import short_convs
from karat.models.family import Family, read_decoder
from karat.models.reader import ConfigReader, read_num_kv_heads
from karat.models.short_convs import ConvShape

_THETA = 1000000.0  # where none is stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Lfm2Config(ModelConfig):
    """Adds the convolutions."""

    convs: ConvShape


def layer(place: Place, config: Lfm2Config, index: int) -> Block:
    """Layer `index` of a model."""
    mlp = GatedMLP(place / "mlp", config.hidden_size, config.shape(index).inner_size)
    return short_convs.block(place, config, config.convs, index, mlp)


def read(reader: ConfigReader) -> Lfm2Config:
    """The configuration from a config.json of this family."""
    hidden, heads = reader.get(int, "hidden_size"), reader.get(int, "num_attention_heads")
    reader.must_be("block_dim", hidden, why=f"MLPs read the hidden_size, {hidden}")
    reader.must_be("num_heads", heads, why=f"there are num_attention_heads={heads}")
    reader.must_be("block_use_swiglu", True, why="MLPs of this type have a gate")
    reader.must_be("block_norm_eps", reader.get(float, short_convs.EPS), why="the norms before MLPs have norm_eps, too")
    for key in ("block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init"):
        reader.raw(key)  # of training
    reader.must_be("theta", reader.get(float, "rope_theta", _THETA), why="RoPE has one base, rope_theta")
    inner = _read_inner_size(reader)
    config = read_decoder(
        reader,
        Lfm2Config,
        layer_windows=(None,) * reader.get(int, "num_hidden_layers"),
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=reader.optional(int, "head_dim"),
        intermediate_size=inner,
        eps_key=short_convs.EPS,
        tied=short_convs.read_tied(reader),
        default_theta=_THETA,
        convs=short_convs.read(reader),
    )
    return replace(config, intermediate_size=inner)


def _read_inner_size(reader: ConfigReader) -> int:
    """The inner size of MLPs: block_ff_dim, or else intermediate_size, two thirds of it unless it is said otherwise."""
    stated = reader.optional(int, "intermediate_size")
    size = reader.get(int, "block_ff_dim", stated)
    adjusts, multiple = reader.get(bool, "block_auto_adjust_ff_dim", True), reader.get(int, "block_multiple_of", 256)
    factor = reader.optional(float, "block_ffn_dim_multiplier") if reader.present("block_ffn_dim_multiplier") else 1.0
    if multiple < 1:
        raise ConfigError(f"block_multiple_of={multiple}: expected at least 1")
    if not adjusts:
        return size
    size = int(2 * size / 3)
    return size if factor is None else -(-int(factor * size) // multiple) * multiple


def _own_config(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    return short_convs.own_config(metadata, names, "lfm2") | {"block_auto_adjust_ff_dim": False}


GGUF: GgufForm[Lfm2Config] = GgufForm(
    architecture="lfm2",
    in_layer=short_convs.TENSORS,
    top=short_convs.TOP,
    own_keys=short_convs.OWN_KEYS,
    by_layer=short_convs.BY_LAYER,
    own_config=_own_config,
    written=lambda config: short_convs.written(config, config.convs),
    without_values=lambda config: config.convs.layers,
    not_in_gguf=lambda config: short_convs.not_in_gguf(config, config.convs),
    not_in_llama_cpp=lambda config: short_convs.not_in_llama_cpp(config, config.convs),
)
FAMILY = Family("lfm2", "Lfm2ForCausalLM", read, layer, GGUF)
