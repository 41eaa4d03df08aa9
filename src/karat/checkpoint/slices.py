"""The part of a stored tensor that a rank holds: only its bytes are read from the mapped file."""

import math
import mmap
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.weights import PLAIN_BYTES, Weight, WeightSpec, mapping_of, num_stored_bytes
from karat.errors import CheckpointError
from karat.quant import FORMATS

Piece = tuple[int, int]


def block_of(dtype: str) -> tuple[int, int]:
    """Values and bytes of the smallest unit of a row of a stored type: a block, or one value."""
    if (format_ := FORMATS.get(dtype)) is not None:
        return format_.block_size, format_.block_bytes
    return 1, PLAIN_BYTES[dtype]


def cut_block(weight: Weight, spec: WeightSpec) -> Piece | None:
    """A piece of `spec` that begins or ends inside a block (blocks cannot be cut); None if there is none."""
    if not spec.pieces or spec.shard_axis != len(weight.shape) - 1 or len(weight.shape) < 2:
        return None
    size = block_of(weight.dtype)[0]
    return next((piece for piece in spec.pieces if piece[0] % size or piece[1] % size), None)


def part_shape(weight: Weight, spec: WeightSpec) -> tuple[int, ...]:
    """The shape of the part of a stored tensor that `spec` asks for."""
    if spec.pieces is None or spec.shard_axis is None:
        return weight.shape
    shape = list(weight.shape)
    shape[spec.shard_axis] = sum(stop - start for start, stop in spec.pieces)
    return tuple(shape)


def part_bytes(weight: Weight, spec: WeightSpec) -> int:
    """The stored bytes of the part that `spec` asks for. Nothing is read."""
    return num_stored_bytes(weight.dtype, part_shape(weight, spec))


def sliced(weight: Weight, spec: WeightSpec) -> Weight:
    """The part of a stored tensor that `spec` asks for; the weight itself where that is all of it.

        axis 0 (column-parallel)         axis 1 (row-parallel)
        rows  | rank 0 |                 columns | rank 0 | rank 1 |
              | rank 1 |                 a row is row_bytes; a rank has bytes row_span of each

    The part stays a view of the file, unless the tensor has to be made of it. Its own bytes are read, and the rest of
    the pages at their ends. The system is told at once which bytes will be read, unless they are only gathered. Raises
    CheckpointError where a block would be cut.
    """
    if spec.pieces is None:
        return weight
    assert spec.shard_axis is not None, f"{spec.source}: pieces of no axis"
    if (piece := cut_block(weight, spec)) is not None:
        size = block_of(weight.dtype)[0]
        raise CheckpointError(
            f"{weight.file}: columns {piece[0]} to {piece[1]} of {weight.name} would cut blocks of {size} of "
            f"{weight.dtype}; run it with fewer ranks, or convert it to a type with smaller blocks"
        )
    weight = weight.settled()
    part = replace(weight, shape=part_shape(weight, spec), whole_shape=weight.shape)
    if len(weight.shape) == 1 or spec.shard_axis == 0:
        return _rows(weight, part, spec.pieces, announced=not spec.gathered)
    assert len(spec.pieces) == 1, f"{spec.source}: a rank holds one piece of the columns, not {spec.pieces}"
    return _columns(weight, part, spec.pieces[0])


def _rows(weight: Weight, part: Weight, pieces: tuple[Piece, ...], *, announced: bool) -> Weight:
    """`part` as whole rows of the tensor (of a vector: values)."""
    rows = weight.stored.reshape(-1, weight.row_bytes)
    if weight.row_order is None and len(pieces) == 1:
        if announced:
            _announce([rows[slice(*pieces[0])]])
        return replace(part, stored=rows[slice(*pieces[0])].reshape(-1))
    every = np.arange(weight.shape[0], dtype=np.intp) if weight.row_order is None else weight.row_order()
    orders = [every[slice(*piece)] for piece in pieces]
    _announce([rows[order.min() : order.max() + 1] for order in orders if len(order)])  # they change places in a head
    order = np.concatenate(orders)
    return replace(part, row_order=lambda: order)


def _columns(weight: Weight, part: Weight, piece: Piece) -> Weight:
    """`part` as the same columns of each row."""
    assert weight.row_order is None, "row-parallel weights are stored in their own order"
    values, num_bytes = block_of(weight.dtype)
    start, stop = (end // values * num_bytes for end in piece)
    rows = weight.stored.reshape(math.prod(weight.shape[:-1]), -1)
    if rows.shape[1] >= 2 * mmap.PAGESIZE:
        _announce(row[start:stop] for row in rows)
    else:  # every page has columns of several ranks
        _announce([weight.stored])
    return replace(part, row_span=(start, stop))


def without_read_ahead(weights: Iterable[Weight]) -> None:
    """Tell the system not to read ahead in the weights' files: the neighbouring bytes belong to other ranks."""
    mappings = {id(found[0]): found[0] for weight in weights if (found := mapping_of(weight.stored)) is not None}
    for mapping in mappings.values():
        if hasattr(mmap, "MADV_RANDOM"):
            mapping.madvise(mmap.MADV_RANDOM)


def _announce(parts: Iterable[NDArray[np.uint8]]) -> None:
    """Tell the system that these parts of a mapped file are about to be read."""
    for part in parts:
        if (found := mapping_of(part)) is not None and hasattr(mmap, "MADV_WILLNEED"):
            mapping, start = found
            page = start - start % mmap.PAGESIZE
            mapping.madvise(mmap.MADV_WILLNEED, page, start + part.nbytes - page)
