"""Quantising a float weight in memory, to the same blocks that a converted file holds."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.weights import Weight
from karat.errors import NumericsError
from karat.quant import Format

_CHUNK_VALUES = 1 << 17  # all the arrays of a step stay in the second cache


@dataclass(frozen=True, slots=True)
class Requantized:
    """A weight in the requested format, or the unchanged weight and the reason, for a message."""

    weight: Weight
    kept_because: str | None = None


def requantize(weight: Weight, format_: Format) -> Requantized:
    """`weight` with its rows in blocks of `format_`: same name, shape and file, the data in memory.

    It stays unchanged where rows are no whole number of blocks, where it is a vector (norms and biases), and where it
    is quantised already. Besides the blocks this takes a few megabytes. Raises NumericsError with the tensor's name for
    values that the format cannot store.
    """
    if reason := _reason_to_keep(weight, format_):
        return Requantized(weight, f"{weight.name} stays {weight.dtype}: {reason}")
    num_rows, columns = weight.shape
    blocks: NDArray[np.uint8] = np.empty((num_rows * columns // format_.block_size, format_.block_bytes), np.uint8)
    step = max(1, _CHUNK_VALUES // max(columns, 1))
    for start in range(0, num_rows, step):
        rows = weight.rows(start, min(start + step, num_rows))
        values = rows.to_array(np.dtype(np.float32)).reshape(-1, format_.block_size)
        first = start * columns // format_.block_size
        try:
            format_.quantize(values, out=blocks[first : first + len(values)])
        except NumericsError as fault:
            raise NumericsError(
                f"{weight.file}: {weight.name}, from value {start * columns} on: {fault}; "
                "run the model unquantised, or repair it"
            ) from fault
    stored = blocks.reshape(-1)
    stored.flags.writeable = False
    done = replace(
        weight, dtype=format_.name, stored=stored, row_order=None, row_span=None, whole_shape=None, made=None
    )
    return Requantized(done)


def requantized_type(weight: Weight, format_: Format) -> str:
    """The stored type that `requantize` would give a weight. The weight is not read."""
    return weight.dtype if _reason_to_keep(weight, format_) else format_.name


def _reason_to_keep(weight: Weight, format_: Format) -> str | None:
    if weight.is_quantised:
        return "it is quantised already, and the precision lost then does not come back"
    if len(weight.shape) < 2:
        return "vectors are small and keep their precision"
    columns = (weight.whole_shape or weight.shape)[-1]  # of the whole row, so that all ranks decide alike
    if columns % format_.block_size:
        return f"its rows have {columns} values, and a block of {format_.name} takes {format_.block_size}"
    return None
