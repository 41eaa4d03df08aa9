"""SmolLM3 (Hugging Face, 2025): Llama's layers, of which every fourth has no RoPE."""

from dataclasses import dataclass, replace

from karat.checkpoint.gguf.form import IN_LAYER, GgufForm, has_bias
from karat.config import LayerShape
from karat.errors import ConfigError
from karat.models.family import Family, read_decoder
from karat.models.llama import LlamaConfig, layer
from karat.models.reader import ConfigReader, read_layer_windows, read_num_kv_heads, read_window
from karat.request import shown

_INTERVAL = 4  # the architecture's default; GGUF has no other
_DEFAULT_THETA = 2_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SmolLM3Config(LlamaConfig):
    """Adds which layers have RoPE."""

    has_rope: tuple[bool, ...]

    def shape(self, layer: int) -> LayerShape:
        usual = LlamaConfig.shape(self, layer)
        return usual if self.has_rope[layer] else replace(usual, rope=None)


def read(reader: ConfigReader) -> SmolLM3Config:
    """The configuration from a config.json of this family. A window is that of the layers without RoPE."""
    num_layers = reader.get(int, "num_hidden_layers")
    has_rope = _read_has_rope(reader, num_layers)
    window = read_window(reader)
    reader.raw("max_window_layers")  # of Qwen2; nothing reads it
    if not reader.get(bool, "use_sliding_window", False):
        window = None
    types = ["full_attention" if has or window is None else "sliding_attention" for has in has_rope]
    return read_decoder(
        reader,
        SmolLM3Config,
        layer_windows=read_layer_windows(reader, num_layers, window, types),
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=reader.optional(int, "head_dim"),
        default_theta=_DEFAULT_THETA,
        has_rope=has_rope,
        attention_bias=reader.get(bool, "attention_bias", False),
        mlp_bias=reader.get(bool, "mlp_bias", False),
    )


def _read_has_rope(reader: ConfigReader, num_layers: int) -> tuple[bool, ...]:
    """From `no_rope_layers`, in which 1 means that the layer has RoPE, or else from the interval."""
    interval, stated = reader.get(int, "no_rope_layer_interval", _INTERVAL), reader.raw("no_rope_layers")
    if stated is None:
        if interval < 1:
            raise ConfigError(f"no_rope_layer_interval={interval}: expected a positive number of layers")
        return tuple((index + 1) % interval != 0 for index in range(num_layers))
    if not isinstance(stated, list) or len(stated) != num_layers or any(has not in (0, 1) for has in stated):
        raise ConfigError(f"no_rope_layers={shown(stated)}: expected 1 (RoPE) or 0 for each of {num_layers} layers")
    return tuple(map(bool, stated))


GGUF: GgufForm[SmolLM3Config] = GgufForm(
    architecture="smollm3",
    in_layer=IN_LAYER,
    paired=("self_attn.q_proj", "self_attn.k_proj"),
    has_rope=lambda _, index: (index + 1) % _INTERVAL != 0,
    own_config=lambda _, names: {
        "attention_bias": has_bias(names, ".self_attn."),
        "mlp_bias": has_bias(names, ".mlp."),
    },
    not_in_llama_cpp=lambda config: "smollm3 with biases" if config.attention_bias or config.mlp_bias else None,
)
FAMILY = Family("smollm3", "SmolLM3ForCausalLM", read, layer, GGUF)
