"""Qwen2 and Qwen2.5 (arXiv 2407.10671): biases on q, k and v; an optional window on the layers above some depth."""

from karat.config import ModelConfig
from karat.models.family import Family, read_decoder
from karat.models.reader import ConfigReader, read_layer_windows


def read_qwen_windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """Windows count only with `use_sliding_window`, and then from layer `max_window_layers` on."""
    num_layers = reader.get(int, "num_hidden_layers")
    window = reader.optional(int, "sliding_window")
    depth = reader.optional(int, "max_window_layers")
    if not reader.get(bool, "use_sliding_window", False):
        window = None
    first = num_layers if window is None else (28 if depth is None else depth)  # 28: the architecture's default
    types = ["full_attention" if layer < first else "sliding_attention" for layer in range(num_layers)]
    return read_layer_windows(reader, num_layers, window, types)


def _read(reader: ConfigReader) -> ModelConfig:
    return read_decoder(
        reader,
        layer_windows=read_qwen_windows(reader),
        num_kv_heads=reader.get(int, "num_key_value_heads"),
        head_dim=reader.optional(int, "head_dim"),
        qkv_bias=True,
    )


FAMILY = Family("qwen2", "Qwen2ForCausalLM", _read)
