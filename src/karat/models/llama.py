"""Llama 2, 3, 3.1, 3.2 (arXiv 2307.09288, 2407.21783): optional biases, no window, llama3 RoPE scaling since 3.1."""

from karat.config import ModelConfig
from karat.models.family import Family, read_decoder
from karat.models.reader import ConfigReader, read_layer_windows


def _read(reader: ConfigReader) -> ModelConfig:
    num_layers, num_heads = reader.get(int, "num_hidden_layers"), reader.get(int, "num_attention_heads")
    reader.must_be("sliding_window", None, why="the llama architecture has no window")
    attention_bias = reader.get(bool, "attention_bias", False)
    return read_decoder(
        reader,
        layer_windows=read_layer_windows(reader, num_layers, None, ["full_attention"] * num_layers),
        num_kv_heads=reader.get(int, "num_key_value_heads", num_heads),
        head_dim=reader.optional(int, "head_dim"),
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        mlp_bias=reader.get(bool, "mlp_bias", False),
    )


FAMILY = Family("llama", "LlamaForCausalLM", _read)
