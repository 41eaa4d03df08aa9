"""Mistral (arXiv 2310.06825): a sliding window on every layer (null in later releases), explicit head_dim."""

from karat.config import ModelConfig
from karat.models.family import Family, read_decoder
from karat.models.reader import ConfigReader, read_layer_windows

_DEFAULT_WINDOW = 4096  # of the architecture, for a file that does not have the key; null means none


def _read(reader: ConfigReader) -> ModelConfig:
    num_layers = reader.get(int, "num_hidden_layers")
    window = reader.optional(int, "sliding_window") if reader.present("sliding_window") else _DEFAULT_WINDOW
    everywhere = "full_attention" if window is None else "sliding_attention"
    reader.must_be("layer_types", None, [everywhere] * num_layers, why="mistral has its window on all layers or none")
    reader.must_be("attention_bias", None, False, why="the mistral architecture has no biases")
    return read_decoder(
        reader,
        layer_windows=read_layer_windows(reader, num_layers, window, [everywhere] * num_layers),
        num_kv_heads=reader.get(int, "num_key_value_heads"),
        head_dim=reader.optional(int, "head_dim"),
    )


FAMILY = Family("mistral", "MistralForCausalLM", _read)
