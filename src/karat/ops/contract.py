"""Which version of the numeric contract (docs/determinism.md) decides the bits of a model."""

from collections.abc import Collection

from karat.config import Activations, ModelConfig
from karat.quant import CODINGS

_LEAVES = 2  # the version since which leaves of row-parallel layers end where they do
_INTEGERS = 5  # the version that defines activations as integers
_NORMS = 6  # the version that adds squares of all heads by leaves
_COLUMNS = 7  # the version in which leaves of experts may be columns


def activations_read(types: Collection[str], activations: Activations) -> Activations:
    """What a model with matrices of these stored types reads: without blocks of karat.quant.CODINGS never integers."""
    has_blocks = any(stored_type in CODINGS for stored_type in types)
    return activations if has_blocks or activations == "float64" else "float32"


def integers_read(types: Collection[str], activations: Activations) -> Activations | None:
    """The width of the integers that a model with matrices of these stored types reads; None if it reads none."""
    read = activations_read(types, activations)
    return read if read.startswith("int") else None


def contract_of(config: ModelConfig, types: Collection[str], by_columns: bool, activations: Activations) -> int:
    """The last version of the numeric contract that changed such a model, of matrices of these stored types.

    `by_columns`: leaves of its experts are columns (karat.models.cut_units). The version is at most
    karat.NUMERIC_CONTRACT: a later version that leaves a model's bits as they are keeps its digests.
    """
    if by_columns:
        return _COLUMNS
    if config.norms_all_heads:
        return _NORMS
    return _LEAVES if integers_read(types, activations) is None else _INTEGERS
