"""OLMo 3 (Ai2, 2025): OLMo 2's layers, of which three of four have a window and a RoPE of their own."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import GgufForm, has_bias
from karat.config import LayerShape, RopeConfig
from karat.errors import ConfigError
from karat.models import olmo2, window_patterns
from karat.models.family import Family, read_decoder
from karat.models.olmo2 import Olmo2Config, layer
from karat.models.reader import ConfigReader
from karat.models.ropes import read_ropes

_WINDOW, _THETA = 4096, 500_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Olmo3Config(Olmo2Config):
    """Adds the RoPE of layers with a window."""

    window_rope: RopeConfig

    def shape(self, layer: int) -> LayerShape:
        usual = Olmo2Config.shape(self, layer)
        return usual if usual.window is None else replace(usual, rope=self.window_rope)


def read(reader: ConfigReader) -> Olmo3Config:
    """The configuration from a config.json of this family."""
    theta = reader.optional(float, "rope_theta")
    if theta not in (None, _THETA) and reader.raw("rope_parameters") is None:
        raise ConfigError(
            f"rope_theta={theta:g}: transformers takes it for layers without a window alone; state rope_parameters "
            "with an object for full_attention and one for sliding_attention"
        )
    max_positions = reader.get(int, "max_position_embeddings")
    rope, window_rope = read_ropes(reader, max_positions, full=_THETA, sliding=_THETA)
    reader.must_be("clip_qkv", why="q, k and v are not clipped")
    return read_decoder(
        reader,
        Olmo3Config,
        layer_windows=window_patterns.read_windows(reader, _WINDOW),
        num_kv_heads=reader.get(int, "num_key_value_heads", reader.get(int, "num_attention_heads")),
        head_dim=reader.optional(int, "head_dim"),
        attention_bias=reader.get(bool, "attention_bias", False),
        rope=rope,
        window_rope=window_rope,
    )


def _own_config(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    return window_patterns.own_config(metadata, "olmo2") | {"attention_bias": has_bias(names, ".self_attn.")}


def _not_in_llama_cpp(config: Olmo3Config) -> str | None:
    if config.attention_bias:
        return "olmo3 with biases in its attention"
    if not window_patterns.in_llama_cpp(config) or config.window_rope.theta != config.rope.theta:
        return "olmo3 with windows in other layers than three of four, or with another base of RoPE there"
    return None


GGUF: GgufForm[Olmo3Config] = GgufForm(
    architecture="olmo2",
    in_layer=olmo2.TENSORS,
    own_keys=(window_patterns.KEY,),
    # Without a window it is computed as OLMo 2.
    claims=lambda metadata: bool(metadata.get(int, "olmo2.attention.sliding_window", 0)),
    has_window=True,
    llama_cpp_has_window=True,
    window_theta=0.0,
    own_config=_own_config,
    written=lambda config: window_patterns.written(config, max((w for w in config.layer_windows if w), default=None)),
    not_in_llama_cpp=_not_in_llama_cpp,
)
FAMILY = Family("olmo3", "Olmo3ForCausalLM", read, layer, GGUF)
