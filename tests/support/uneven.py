"""A llama whose layers have sizes, windows and RoPE of their own, as families have that are still to come."""

from dataclasses import dataclass

from karat.config import LayerShape, RopeConfig
from karat.models.llama import LlamaConfig

HIDDEN, MAX_LEN = 24, 64
SHAPES = (
    LayerShape(num_heads=8, num_kv_heads=4, head_dim=6, inner_size=40, window=5, rope=RopeConfig(theta=1e4)),
    LayerShape(num_heads=8, num_kv_heads=2, head_dim=10, inner_size=72, window=None, rope=None),
    LayerShape(num_heads=8, num_kv_heads=4, head_dim=6, inner_size=40, window=5, rope=RopeConfig(theta=1e6)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenConfig(LlamaConfig):
    """Adds the shape of each layer."""

    by_layer: tuple[LayerShape, ...]

    def shape(self, layer: int) -> LayerShape:
        return self.by_layer[layer]


def uneven_config(*shapes: LayerShape) -> UnevenConfig:
    """A model with these layers (none: SHAPES), and otherwise the sizes of their first."""
    shapes = shapes or SHAPES
    first = shapes[0]
    return UnevenConfig(
        model_type="llama",
        vocab_size=50,
        hidden_size=HIDDEN,
        intermediate_size=first.inner_size,
        num_layers=len(shapes),
        num_heads=first.num_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        rms_norm_eps=1e-5,
        max_position_embeddings=MAX_LEN,
        rope=first.rope or RopeConfig(theta=1e4),
        tie_word_embeddings=False,
        layer_windows=tuple(shape.window for shape in shapes),
        attention_bias=False,
        mlp_bias=False,
        by_layer=shapes,
    )
