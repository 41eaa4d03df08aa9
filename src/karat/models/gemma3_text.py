"""Gemma 3 (Google, 2025): five layers with a window and a RoPE of its own, then one that sees all keys.

Folders of 4B and more also have a vision encoder: gemma3.py.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import GgufForm, has_bias
from karat.config import LayerShape, RopeConfig
from karat.layers.block import Block
from karat.layers.place import Place
from karat.models import gemmas
from karat.models.family import Family, read_decoder
from karat.models.gemmas import GemmaConfig
from karat.models.reader import ConfigReader, read_num_kv_heads
from karat.models.ropes import read_ropes

_EVERY, _LARGEST = 6, 62
_THETA, _WINDOW_THETA = 1_000_000.0, 10_000.0
_PATTERN = "sliding_window_pattern"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Config(GemmaConfig):
    """Adds the RoPE of layers with a window."""

    window_rope: RopeConfig

    def shape(self, layer: int) -> LayerShape:
        usual = GemmaConfig.shape(self, layer)
        return usual if usual.window is None else replace(usual, rope=self.window_rope)


def layer(place: Place, config: Gemma3Config, index: int) -> Block:
    """Layer `index` of a model."""
    return gemmas.layer(place, config, config.shape(index), normed=True)


def read(reader: ConfigReader) -> Gemma3Config:
    """The configuration from a config.json of this family."""
    reader.assume({**gemmas.DEFAULTS, "vocab_size": 262_208, "max_position_embeddings": 131_072})
    reader.must_be(gemmas.ATTENTION_CAP, why="scores of this type have no cap")
    every = reader.get(int, _PATTERN, _EVERY)
    reader.must_be(f"_{_PATTERN}", every, why=f"{_PATTERN} is {every}, or not stated")
    max_positions = reader.get(int, "max_position_embeddings")
    rope, window_rope = read_ropes(
        reader, max_positions, full=_THETA, sliding=_WINDOW_THETA, sliding_key="rope_local_base_freq"
    )
    return read_decoder(
        reader,
        Gemma3Config,
        layer_windows=gemmas.read_windows(reader, every),
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=reader.get(int, "head_dim"),
        rope=rope,
        activation=gemmas.ACTIVATION,
        window_rope=window_rope,
        **gemmas.read(reader),
    )


def _own_config(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    own = gemmas.own_config(metadata, "gemma3", _LARGEST, 0) | {"attention_bias": has_bias(names, ".self_attn.")}
    return own | {_PATTERN: metadata.get(int, f"gemma3.attention.{_PATTERN}", _EVERY)}


GGUF: GgufForm[Gemma3Config] = GgufForm(
    architecture="gemma3",
    in_layer={**gemmas.TENSORS, **gemmas.QK_NORMS},
    numbers={gemmas.FINAL_CAP: gemmas.FINAL_CAP},
    own_keys=(f"attention.{_PATTERN}",),
    constants={},
    has_window=True,
    llama_cpp_has_window=True,
    window_theta=_WINDOW_THETA,
    own_config=_own_config,
    as_stored=gemmas.as_stored,
    written=gemmas.written,
    not_in_gguf=lambda config: gemmas.not_in_gguf(config, _EVERY, _LARGEST),
    not_in_llama_cpp=lambda config: "gemma3 with biases in its attention" if config.attention_bias else None,
)
FAMILY = Family(
    "gemma3_text", "Gemma3ForCausalLM", read, layer, GGUF, gemmas.ends, least_kv_dtype=gemmas.LEAST_KV_DTYPE
)
