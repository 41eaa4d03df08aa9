"""What is never cut in a model's row-parallel layers: decided once, from the stored types, for all that cut them.

Layers, loading, `karat inspect`, `karat check` and the list of possible degrees get the same Units. Columns of o_proj
and down_proj are counted in blocks of 256 only where some layer stores that weight in a format of such blocks, else in
blocks of 32 where 32 divides them, else one by one; those of o_proj in whole heads as well. All layers are cut alike.
"""

from collections.abc import Callable, Mapping
from math import lcm

from karat.checkpoint.slices import block_of
from karat.checkpoint.weights import Weight
from karat.config import ModelConfig
from karat.layers.shards import Units

_BLOCK = 32  # of the common formats: models in float32, in Q8_0 and in Q4_0 are cut alike


def units_of(
    config: ModelConfig, weights: Mapping[str, Weight], stored_type: Callable[[Weight], str] = lambda w: w.dtype
) -> Units:
    """The units of a model of these weights (by the names of its specs), each of which will be of `stored_type`."""

    def block(columns: int, name: str) -> int:
        stored = (weights[f"model.layers.{layer}.{name}.weight"] for layer in range(config.num_layers))
        sizes = {block_of(stored_type(weight))[0] for weight in stored}
        return lcm(_BLOCK if columns % _BLOCK == 0 else 1, *sizes)

    heads = lcm(config.head_dim, block(config.num_heads * config.head_dim, "self_attn.o_proj")) // config.head_dim
    return Units(heads, block(config.intermediate_size, "mlp.down_proj"))
