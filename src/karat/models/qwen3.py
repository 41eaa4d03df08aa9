"""Qwen3 (arXiv 2505.09388): per-head RMSNorm of q and k before RoPE, explicit head_dim, optional biases."""

from karat.config import ModelConfig
from karat.models.family import Family, read_decoder
from karat.models.qwen2 import read_qwen_windows
from karat.models.reader import ConfigReader


def _read(reader: ConfigReader) -> ModelConfig:
    attention_bias = reader.get(bool, "attention_bias", False)
    return read_decoder(
        reader,
        layer_windows=read_qwen_windows(reader),
        num_kv_heads=reader.get(int, "num_key_value_heads"),
        head_dim=reader.get(int, "head_dim"),
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        qk_norm=True,
    )


FAMILY = Family("qwen3", "Qwen3ForCausalLM", _read)
