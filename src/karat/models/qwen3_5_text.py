"""Qwen3.5, 3.6 and 3.8, dense: three layers of four are gated delta nets, the fourth is attention with a gate.

Their folders also have a vision encoder: qwen3_5.py.
"""

from dataclasses import dataclass, replace

from karat.checkpoint.gguf.form import GgufForm
from karat.config import LayerShape, ModelConfig
from karat.layers.block import Block, Branch
from karat.layers.mlp import GatedMLP
from karat.layers.place import Place
from karat.models import hybrids
from karat.models.family import Ends, Family, read_decoder
from karat.models.hybrids import HybridShape
from karat.models.reader import ConfigReader

_THETA = 10000.0  # where none is stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen35Config(ModelConfig):
    """Adds the delta nets."""

    hybrid: HybridShape

    def shape(self, layer: int) -> LayerShape:
        """RoPE turns a part of each head."""
        return replace(ModelConfig.shape(self, layer), rotary_dim=self.hybrid.rotary_dim)


def layer(place: Place, config: Qwen35Config, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, hybrid, shape = config.hidden_size, config.rms_norm_eps, config.hybrid, config.shape(index)
    before = hybrids.norm(place / "input_layernorm", size, hybrid, eps=eps)
    between = hybrids.norm(place / "post_attention_layernorm", size, hybrid, eps=eps)
    mixer = hybrids.mixer(place, size, shape, hybrid, index, eps=eps)
    return Block(place.name, Branch(before, mixer), Branch(between, GatedMLP(place / "mlp", size, shape.inner_size)))


def ends(config: Qwen35Config) -> Ends:
    """The last norm is like the others."""
    return Ends(norm_plus_one=not config.hybrid.as_gguf)


def read(reader: ConfigReader) -> Qwen35Config:
    """The configuration from a config.json of this family."""
    head_dim = reader.get(int, "head_dim", 256)
    return read_decoder(
        reader,
        Qwen35Config,
        layer_windows=(None,) * reader.get(int, "num_hidden_layers"),
        num_kv_heads=hybrids.read_kv_heads(reader, 4),
        head_dim=head_dim,
        default_theta=_THETA,
        rope_keys=hybrids.ROPE_KEYS,
        hybrid=hybrids.read(reader, head_dim),
    )


GGUF: GgufForm[Qwen35Config] = GgufForm(
    architecture="qwen35",
    in_layer=hybrids.TENSORS,
    whole_names=hybrids.WHOLE_NAMES,
    own_keys=hybrids.OWN_KEYS,
    turns_part=True,
    own_config=lambda metadata, _: hybrids.own_config(metadata, "qwen35"),
    as_stored=lambda config, weight: hybrids.as_stored(config.hybrid, weight),
    written=lambda config: hybrids.written(config.hybrid, config.num_layers),
    not_in_llama_cpp=lambda config: hybrids.not_in_llama_cpp(config.hybrid),
)
FAMILY = Family("qwen3_5_text", "Qwen3_5ForCausalLM", read, layer, GGUF, ends)
