"""The packed matrices of a model in a folder that the user named: packed_file writes them at the first time."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.packed import PackedFile, Packing, SourceFile, open_packed, source_of, write_packed
from karat.checkpoint.weights import Checkpoint, Weight
from karat.config import ModelConfig
from karat.engine.model_loading.llm_options import Options
from karat.errors import CheckpointError, OutputError
from karat.layers.weights import Prepare, stays_mapped
from karat.models.decoder import weight_specs
from karat.models.registry import find_weights
from karat.ops.executor import Executor

_log = logging.getLogger(__name__)
SUFFIX = ".karat-packed"


def packed_path(folder: Path, model: Path, quantize: str | None) -> Path:
    """Where the packed file of a model lies: its name says which model it is, for people; a digest of its path and of
    `quantize` tells it from others of that name."""
    whole = hashlib.sha256(f"{model.absolute()}\n{quantize or ''}".encode()).hexdigest()
    return folder / f"{model.name}-{whole[:16]}{SUFFIX}"


def reads_packed(options: Options, ops: Executor) -> bool:
    """Whether a model that is loaded with these options reads a packed file. A rank packs its own part."""
    return options.packed_cache is not None and options.tensor_parallel_size == 1 and ops.packed_layout is not None


@dataclass(frozen=True, slots=True)
class PackingPlan:
    """The packed file that a model should have: where it lies, of which files it is made, what is in it."""

    path: Path
    layout: int
    source: list[SourceFile]
    matrices: Mapping[str, Packing]

    def found(self) -> PackedFile | None:
        """The file, if one is there and is of these very files. CheckpointError for one that is damaged or another
        user's."""
        if not self.path.is_symlink() and not self.path.exists():
            return None
        found = open_packed(self.path)
        return found if found.is_of(self.layout, self.source, self.matrices) else None

    def verified(self) -> PackedFile:
        """The same, all of whose matrices were hashed; CheckpointError if it is not there or not what was packed."""
        found = self.found()
        if found is None:
            raise CheckpointError(
                f"{self.path}: is not there, or is of other files, other rows or another version of Karat; pack the "
                "model first, without --verify"
            )
        found.verify()
        return found

    def written(self, progress: Callable[[int, int], None] | None = None) -> PackedFile:
        """The file as it is if `found`, else written now. `progress` is called with the bytes that are packed, and all
        that will be. OutputError where it cannot be written."""
        if (found := self.found()) is not None:
            return found
        if self.path.exists():
            _log.info("%s is of other files, other rows or another version of Karat, and is written anew", self.path)
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise OutputError(f"{folder}: cannot be made ({fault.strerror}); name another folder") from fault
        write_packed(self.path, self.layout, self.source, self.matrices, progress)
        return open_packed(self.path)


def plan_packing(
    folder: Path, config: ModelConfig, checkpoint: Checkpoint, ops: Executor, prepare: Prepare, *, quantize: str | None
) -> PackingPlan:
    """The plan of a model's packed file in `folder`; `ops` has a layout."""
    weights = find_weights(config, checkpoint)
    assert ops.packed_layout is not None, f"{ops.executor} has no layout"
    matrices = {
        spec.source: _packing(weights[spec.source], ops, prepare)
        for spec in weight_specs(config)
        if len(spec.shape) == 2 and not stays_mapped(ops, prepare, spec, weights[spec.source])
    }
    path, source = packed_path(folder, checkpoint.path, quantize), source_of(weights.values())
    return PackingPlan(path, ops.packed_layout, source, matrices)


def _packing(weight: Weight, ops: Executor, prepare: Prepare) -> Packing:
    dtype, (rows, columns) = prepare.stored_type(weight), weight.shape

    def pack() -> NDArray[np.uint8]:
        return ops.packed(ops.load(prepare(weight)))  # which gives back the pages that it has read

    return Packing(dtype, (rows, columns), ops.bytes_of(dtype, weight.shape), pack, _rows_of(weight))


def _rows_of(weight: Weight) -> str:
    """A digest of which stored rows a matrix has, and in which order; empty if all as they lie."""
    if weight.row_order is None and weight.row_span is None:
        return ""
    order = b"" if weight.row_order is None else np.ascontiguousarray(weight.row_order(), "<i8").tobytes()
    return hashlib.sha256(f"{weight.row_span} ".encode() + order).hexdigest()
