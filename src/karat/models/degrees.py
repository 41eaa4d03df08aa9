"""The tensor-parallel degrees that a model can have."""

from karat.config import ModelConfig
from karat.errors import UsageError
from karat.layers.shards import CutUnits
from karat.models.decoder import rank_specs
from karat.ops.leaves import NUM_LEAVES
from karat.ranks.group import PlannedRank

DEGREES = tuple(2**k for k in range(NUM_LEAVES.bit_length()))  # 1, 2, 4, 8: subtrees of the tree of leaves


def obstacle(config: ModelConfig, units: CutUnits, size: int) -> str | None:
    """Why a model cannot be cut for `size` ranks; None if it can."""
    if size not in DEGREES:
        return f"ranks own subtrees of a tree with {NUM_LEAVES} leaves, so their number is one of {_listed(DEGREES)}"
    # Of n pieces the first rank has ⌊n / size⌋, and no rank has fewer (karat.layers.shards).
    for spec in rank_specs(config, units, PlannedRank(0, size)) if size > 1 else ():
        axis, pieces = spec.shard_axis, spec.pieces
        if axis is not None and pieces is not None and not all(start < stop for start, stop in pieces):
            return (
                f"the {spec.shape[axis]} {'columns' if axis else 'rows'} of {spec.source} are shared out in whole "
                "heads and blocks, and none would be left for rank 0"
            )
    return None


def working_degrees(config: ModelConfig, units: CutUnits) -> tuple[int, ...]:
    """All degrees that the model can have."""
    return tuple(size for size in DEGREES if obstacle(config, units, size) is None)


def check_degree(config: ModelConfig, units: CutUnits, size: int) -> None:
    """Raise UsageError, with the degrees that work, unless the model can be cut for `size` ranks."""
    if (reason := obstacle(config, units, size)) is not None:
        raise UsageError(
            f"tensor_parallel_size={size}: {reason}; this model works with {_listed(working_degrees(config, units))}"
        )


def _listed(degrees: tuple[int, ...]) -> str:
    return ", ".join(map(str, degrees))
