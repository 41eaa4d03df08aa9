"""Units of columns that no rank and no leaf of a sum cuts in the row-parallel weights of a model (o_proj, down_proj …).

They are decided here, once, from the stored types. Layers, loading, `karat inspect`, `karat check` and the list of
possible degrees get the same CutUnits. Weights of one cut (karat.layers.shards.Cut) are counted in blocks of 256
columns only where a layer stores one of them in a format of such blocks, else in blocks of 32 where 32 divides the
columns, else one by one. A unit is also a whole number of what belongs together, such as a head. So layers of one shape
are cut alike.
"""

from collections.abc import Callable, Mapping
from math import lcm

from karat.checkpoint.slices import block_of
from karat.checkpoint.weights import Weight
from karat.config import ModelConfig
from karat.layers.shards import Cut, CutUnits, cut_by_columns
from karat.models.decoder import outline

_BLOCK = 32  # of the common formats: models in float32, in Q8_0 and in Q4_0 are cut alike


def cut_units(
    config: ModelConfig, weights: Mapping[str, Weight], stored_type: Callable[[Weight], str] = lambda w: w.dtype
) -> CutUnits:
    """The units of a model of these weights (by the names of its specs); `stored_type` is the type each will have."""
    units: dict[Cut, int] = {}
    for name, cut in outline(config).cuts.items():
        least = lcm(cut.whole, 1 if cut.columns % _BLOCK else _BLOCK)
        units[cut] = lcm(units.get(cut, least), block_of(stored_type(weights[name]))[0])
    return units


def experts_by_columns(units: CutUnits) -> bool:
    """Whether a model has experts whose leaves are columns, so numeric contract 7 is its own (karat.ops.contract)."""
    return any(cut.of_experts and cut_by_columns(cut.columns, unit) for cut, unit in units.items())
