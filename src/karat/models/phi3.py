"""Phi-3, 3.5 and 4 (Microsoft, 2024 and 2025): Llama's layers; RoPE has other factors for long contexts."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import IN_LAYER, LONG_ROPE, GgufForm, stated_window
from karat.config import LayerShape, ModelConfig, RopeConfig
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models.family import Family, read_decoder
from karat.models.reader import ConfigReader, read_layer_windows, read_window
from karat.models.ropes import read_long_rope, read_rotary_part

_ORIGINAL = 4096  # where a file lacks the key


@dataclass(frozen=True, slots=True, kw_only=True)
class Phi3Config(ModelConfig):
    """Adds how much of a head RoPE turns, and RoPE of usual contexts and of longer ones; `rope` is the one in force."""

    rotary_dim: int
    ropes: tuple[RopeConfig, ...]

    def shape(self, layer: int) -> LayerShape:
        return LayerShape(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            inner_size=self.intermediate_size,
            window=self.layer_windows[layer],
            rope=self.rope,
            rotary_dim=self.rotary_dim,
        )

    @property
    def usual_context(self) -> int:
        return (
            self.rope.original_max_position_embeddings if self.rope in self.ropes[:1] else self.max_position_embeddings
        )

    @property
    def other_ropes(self) -> tuple[RopeConfig, ...]:
        return tuple(rope for rope in self.ropes if rope != self.rope)

    def reading(self, context: int | None) -> "Phi3Config":
        is_long = bool(self.ropes) and context is not None and context > self.ropes[0].original_max_position_embeddings
        return replace(self, rope=self.ropes[is_long]) if self.ropes else self


def layer(place: Place, config: Phi3Config, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, shape = config.hidden_size, config.rms_norm_eps, config.shape(index)
    attention_norm = RMSNorm(place / "input_layernorm", size, eps)
    attention = Attention(place / "self_attn", size, shape)
    mlp_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    mlp = GatedMLP(place / "mlp", size, shape.inner_size)
    return Block(place.name, Branch(attention_norm, attention), Branch(mlp_norm, mlp))


def read(reader: ConfigReader) -> Phi3Config:
    """The configuration from a config.json of this family."""
    num_layers, num_heads = reader.get(int, "num_hidden_layers"), reader.get(int, "num_attention_heads")
    window = read_window(reader)
    reader.must_be("full_attn_mod", 1, why="all layers are alike")
    everywhere = "full_attention" if window is None else "sliding_attention"
    reader.must_be("layer_types", [everywhere] * num_layers, why="phi3 has its window on all layers or none")
    head_dim = reader.optional(int, "head_dim") or reader.get(int, "hidden_size") // max(num_heads, 1)
    ropes = read_long_rope(reader, reader.get(int, "max_position_embeddings"), _ORIGINAL) or ()
    reader.optional(int, "original_max_position_embeddings")  # of others than longrope
    return read_decoder(
        reader,
        Phi3Config,
        layer_windows=read_layer_windows(reader, num_layers, window, [everywhere] * num_layers),
        num_kv_heads=reader.get(int, "num_key_value_heads", num_heads),
        head_dim=reader.optional(int, "head_dim"),
        rope_keys=("partial_rotary_factor",),
        rope=ropes[0] if ropes else None,
        rotary_dim=int(head_dim * read_rotary_part(reader, 1.0)),
        ropes=ropes,
    )


def _own_config(metadata: Metadata, _: Collection[str]) -> dict[str, Any]:
    hidden, heads = (metadata.get(int, f"phi3.{key}") for key in ("embedding_length", "attention.head_count"))
    head_dim = metadata.get(int, "phi3.attention.key_length", hidden // max(heads, 1))
    turned = metadata.get(int, "phi3.rope.dimension_count", head_dim)
    window = stated_window(metadata, "phi3") or None
    part = (turned + 0.5) / max(head_dim, 1)  # of which the whole numbers of a head are turned
    return {"partial_rotary_factor": part, "sliding_window": window}


GGUF: GgufForm[Phi3Config] = GgufForm(
    architecture="phi3",
    in_layer={**IN_LAYER, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    joined={f"self_attn.{part}_proj": "self_attn.qkv_proj" for part in "qkv"}
    | {f"mlp.{part}_proj": "mlp.gate_up_proj" for part in ("gate", "up")},
    turns_part=True,
    has_window=True,
    own_config=_own_config,
    written=lambda config: {"rope.dimension_count": config.rotary_dim},
    rope_factors=lambda config: dict(zip(LONG_ROPE, (rope.factors for rope in config.ropes), strict=False)),
)
FAMILY = Family("phi3", "Phi3ForCausalLM", read, layer, GGUF, brings_code=True)
