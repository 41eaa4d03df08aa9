"""packed_file: the packed matrices of a model in a folder that the user named, written at the first time."""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.packed import PackedFile, Packing, open_packed, source_of, write_packed
from karat.checkpoint.weights import Checkpoint, Weight
from karat.config import ModelConfig
from karat.engine.model_loading.llm_options import Options
from karat.errors import OutputError
from karat.layers.weights import Prepare
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


def packed_file(
    folder: Path,
    config: ModelConfig,
    checkpoint: Checkpoint,
    ops: Executor,
    prepare: Prepare,
    *,
    quantize: str | None,
    progress: Callable[[int, int], None] | None = None,
) -> PackedFile:
    """The packed file of a model, as it is if it is there and of these very files, else written now.

    `ops` has a layout. `progress` is called with the bytes that are packed, and all that will be. Raises
    CheckpointError for a file that is there and damaged or another user's, OutputError where none can be written.
    """
    weights = find_weights(config, checkpoint)
    path, source = packed_path(folder, checkpoint.path, quantize), source_of(weights.values())
    assert ops.packed_layout is not None, f"{ops.executor} has no layout"
    specs = [spec.source for spec in weight_specs(config) if len(spec.shape) == 2]
    matrices = {name: _packing(weights[name], ops, prepare) for name in specs}
    if path.is_symlink() or path.exists():
        found = open_packed(path)
        if found.is_of(ops.packed_layout, source, matrices):
            return found
        _log.info("%s is of other files, other rows or another version of Karat, and is written anew", path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise OutputError(f"{folder}: cannot be made ({fault.strerror}); name another folder") from fault
    write_packed(path, ops.packed_layout, source, matrices, progress)
    return open_packed(path)


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
