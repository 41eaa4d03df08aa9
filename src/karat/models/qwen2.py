"""Qwen2 and Qwen2.5 (arXiv 2407.10671): biases on q, k and v; an optional window on layers from some depth on."""

from dataclasses import dataclass

from karat.checkpoint.gguf.form import IN_LAYER, GgufForm
from karat.config import ModelConfig
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models.family import Family, read_decoder
from karat.models.reader import ConfigReader, read_layer_windows, read_num_kv_heads, read_window

_DEFAULT_WINDOW = 4096  # tokens; the architecture's default where a file lacks the key. null means no window


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2Config(ModelConfig):
    """Adds nothing."""


def layer(place: Place, config: Qwen2Config, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, shape = config.hidden_size, config.rms_norm_eps, config.shape(index)
    attention_norm = RMSNorm(place / "input_layernorm", size, eps)
    attention = Attention(place / "self_attn", size, shape, qkv_bias=True)
    mlp_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    mlp = GatedMLP(place / "mlp", size, shape.inner_size)
    return Block(place.name, Branch(attention_norm, attention), Branch(mlp_norm, mlp))


def read_windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """The window of each layer: with `use_sliding_window`, layers from `max_window_layers` on have one."""
    num_layers = reader.get(int, "num_hidden_layers")
    window = read_window(reader, _DEFAULT_WINDOW)
    depth = reader.optional(int, "max_window_layers")
    if not reader.get(bool, "use_sliding_window", False):
        window = None
    first = num_layers if window is None else (28 if depth is None else depth)  # 28: the architecture's default
    types = ["full_attention" if layer < first else "sliding_attention" for layer in range(num_layers)]
    return read_layer_windows(reader, num_layers, window, types)


def read(reader: ConfigReader) -> Qwen2Config:
    """The configuration from a config.json of this family."""
    reader.must_be("attention_bias", True, False, why="it is no truth value")  # q, k and v always have biases
    reader.must_be("qkv_bias", True, why="models of this type have biases on q, k and v")
    return read_decoder(
        reader,
        Qwen2Config,
        layer_windows=read_windows(reader),
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=reader.optional(int, "head_dim"),
    )


def _not_in_llama_cpp(config: Qwen2Config) -> str | None:
    if config.num_heads * config.head_dim == config.hidden_size:
        return None
    return f"qwen2 with {config.num_heads} heads of {config.head_dim} in a hidden size of {config.hidden_size}"


GGUF: GgufForm[Qwen2Config] = GgufForm(
    architecture="qwen2",
    in_layer=IN_LAYER,
    finer_values=lambda config: config.num_layers == 80,
    not_in_llama_cpp=_not_in_llama_cpp,
)
FAMILY = Family("qwen2", "Qwen2ForCausalLM", read, layer, GGUF)
