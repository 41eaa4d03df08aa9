"""Units of columns that no rank and no leaf of a sum cuts in a model's row-parallel layers (o_proj and down_proj).

They are decided here, once, from the stored types. Layers, loading, `karat inspect`, `karat check` and the list of
possible degrees get the same CutUnits. Both weights are counted in blocks of 256 columns only where a layer stores the
weight in a format of such blocks, else in blocks of 32 where 32 divides the columns, else one by one. A unit of o_proj
is also a whole number of heads. All layers are cut alike.
"""

from collections.abc import Callable, Mapping
from math import lcm

from karat.checkpoint.slices import block_of
from karat.checkpoint.weights import Weight
from karat.config import ModelConfig
from karat.layers.shards import CutUnits

_BLOCK = 32  # of the common formats: models in float32, in Q8_0 and in Q4_0 are cut alike


def cut_units(
    config: ModelConfig, weights: Mapping[str, Weight], stored_type: Callable[[Weight], str] = lambda w: w.dtype
) -> CutUnits:
    """The units of a model of these weights (by the names of its specs); `stored_type` is the type each will have."""

    def block(columns: int, name: str) -> int:
        stored = (weights[f"model.layers.{layer}.{name}.weight"] for layer in range(config.num_layers))
        sizes = {block_of(stored_type(weight))[0] for weight in stored}
        return lcm(_BLOCK if columns % _BLOCK == 0 else 1, *sizes)

    heads = lcm(config.head_dim, block(config.num_heads * config.head_dim, "self_attn.o_proj")) // config.head_dim
    return CutUnits(heads, block(config.intermediate_size, "mlp.down_proj"))
