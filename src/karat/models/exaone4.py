"""EXAONE 4 (LG AI Research, 2025): norms after the parts; where layers have windows, the others have no RoPE."""

from dataclasses import dataclass, replace

from karat.checkpoint.gguf.form import GgufForm
from karat.config import LayerShape, ModelConfig
from karat.errors import ConfigError
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models import olmo2, window_patterns
from karat.models.family import Family, read_decoder
from karat.models.reader import ConfigReader, read_num_kv_heads, read_window

_WINDOW = 4096  # where a file lacks the key; null means no window, and RoPE in all layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Exaone4Config(ModelConfig):
    """Adds the window, of which layers without it need to know."""

    sliding_window: int | None

    def shape(self, layer: int) -> LayerShape:
        usual = ModelConfig.shape(self, layer)
        return usual if self.sliding_window is None or usual.window else replace(usual, rope=None)


def layer(place: Place, config: Exaone4Config, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, shape = config.hidden_size, config.rms_norm_eps, config.shape(index)
    attention = Attention(place / "self_attn", size, shape, qk_norm_eps=eps)
    attention_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    mlp = GatedMLP(place / "mlp", size, shape.inner_size)
    mlp_norm = RMSNorm(place / "post_feedforward_layernorm", size, eps)
    return Block(place.name, Branch(None, attention, attention_norm), Branch(None, mlp, mlp_norm))


def read(reader: ConfigReader) -> Exaone4Config:
    """The configuration from a config.json of this family."""
    windows = window_patterns.read_windows(reader, _WINDOW, _read_every(reader))
    return read_decoder(
        reader,
        Exaone4Config,
        layer_windows=windows,
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=reader.optional(int, "head_dim"),
        sliding_window=read_window(reader, _WINDOW),
    )


def _read_every(reader: ConfigReader) -> int:
    """Every how many layers there is one without a window: a number, or letters such as LLLG, of which G is that."""
    stated = reader.raw("sliding_window_pattern")
    if isinstance(stated, str) and stated == "L" * (len(stated) - 1) + "G":
        return len(stated)
    every = reader.get(int, "sliding_window_pattern", window_patterns.EVERY)
    if every < 1:
        raise ConfigError(f"sliding_window_pattern={every}: expected a positive number of layers")
    return every


def _not_in_llama_cpp(config: Exaone4Config) -> str | None:
    """It takes files of 64 layers for those with windows."""
    is_known = window_patterns.in_llama_cpp(config) and (config.sliding_window is None) == (config.num_layers != 64)
    return None if is_known else "exaone4 with windows in other layers than three of four, of 64"


GGUF: GgufForm[Exaone4Config] = GgufForm(
    architecture="exaone4",
    in_layer=olmo2.TENSORS,
    own_keys=(window_patterns.KEY,),
    has_window=True,
    llama_cpp_has_window=True,
    has_rope=lambda config, index: config.shape(index).rope is not None,
    own_config=lambda metadata, _: window_patterns.own_config(metadata, "exaone4"),
    written=lambda config: window_patterns.written(config, config.sliding_window),
    not_in_llama_cpp=_not_in_llama_cpp,
)
FAMILY = Family("exaone4", "Exaone4ForCausalLM", read, layer, GGUF)
