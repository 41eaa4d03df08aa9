"""A rank's part of a tensor has the bytes that NumPy cuts out of it, and nothing is copied until it is asked for.

Covers: karat.checkpoint.weights.
"""

import mmap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.checkpoint import requantize
from karat.checkpoint.slices import block_of, part_bytes, sliced
from karat.checkpoint.weights import Weight, WeightSpec
from karat.errors import CheckpointError
from karat.quant import FORMATS

TYPES = ("F32", "BF16", "Q8_0", "Q4_0", "Q4_K")


def made(dtype: str, rows: int, blocks: int, order: NDArray[np.intp] | None = None) -> tuple[Weight, NDArray[np.uint8]]:
    """A weight and its bytes in the order of its rows: [rows, blocks, bytes of a block]."""
    size, num_bytes = block_of(dtype)
    content = np.random.default_rng(rows).integers(0, 256, (rows, blocks, num_bytes), np.uint8)
    ordered: Callable[[], NDArray[np.intp]] | None = None if order is None else lambda: order
    weight = Weight("weight", dtype, (rows, blocks * size), content.reshape(-1), Path("in-memory"), ordered)
    return weight, content if order is None else content[order]


@given(
    dtype=st.sampled_from(TYPES),
    rows=st.integers(1, 20),
    blocks=st.integers(1, 9),
    axis=st.sampled_from([0, 1]),
    shuffled=st.booleans(),
    data=st.data(),
)
def test_parts_are_what_numpy_cuts(
    dtype: str, rows: int, blocks: int, axis: int, shuffled: bool, data: st.DataObject
) -> None:
    order = np.random.default_rng(3).permutation(rows) if shuffled and axis == 0 else None
    weight, content = made(dtype, rows, blocks, order)
    start = data.draw(st.integers(0, (rows, blocks)[axis] - 1))
    stop = data.draw(st.integers(start + 1, (rows, blocks)[axis]))
    unit = block_of(dtype)[0] if axis else 1
    spec = WeightSpec("weight", weight.shape, axis, ((start * unit, stop * unit),))
    part = sliced(weight, spec)
    want = content[start:stop] if axis == 0 else content[:, start:stop]
    assert part.shape == (want.shape[0], want.shape[1] * block_of(dtype)[0])
    assert part.num_bytes == want.size == part_bytes(weight, spec)
    np.testing.assert_array_equal(part.data, want.reshape(-1))
    assert np.shares_memory(part.stored, weight.stored)
    first = data.draw(st.integers(0, len(want) - 1))
    last = data.draw(st.integers(first + 1, len(want)))
    some = part.rows(first, last)
    assert some.shape == (last - first, part.shape[1])
    np.testing.assert_array_equal(some.data, want[first:last].reshape(-1))
    whole = Weight("weight", dtype, part.shape, np.ascontiguousarray(want).reshape(-1), Path("in-memory"))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(part.to_array(np.dtype(np.float32)), whole.to_array(np.dtype(np.float32)))


@given(rows=st.integers(1, 20), order=st.booleans(), axis=st.sampled_from([0, 1]))
def test_a_part_is_quantised_as_the_whole_is(rows: int, order: bool, axis: int) -> None:
    """Of a rank's columns or rows, in any order, the same blocks come as of the whole matrix."""
    values = np.random.default_rng(rows).standard_normal((rows, 256)).astype(np.float32)
    place = np.random.default_rng(1).permutation(rows) if order and axis == 0 else None
    weight = Weight("weight", "F32", values.shape, values.reshape(-1).view(np.uint8), Path("in-memory"))
    if place is not None:
        weight = replace(weight, row_order=lambda: place)
    whole = requantize(weight, FORMATS["Q4_0"]).weight.data.reshape(rows, 8, 18)
    piece = ((rows - 1) // 2, rows) if axis == 0 else (64, 192)
    part = requantize(sliced(weight, WeightSpec("weight", weight.shape, axis, (piece,))), FORMATS["Q4_0"]).weight
    want = whole[slice(*piece)] if axis == 0 else whole[:, 2:6]
    np.testing.assert_array_equal(part.data, want.reshape(-1))


def test_a_vector_is_cut_too() -> None:
    values = np.arange(10, dtype=np.float32)
    weight = Weight("bias", "F32", (10,), values.view(np.uint8), Path("in-memory"))
    part = sliced(weight, WeightSpec("bias", (10,), 0, ((3, 7),)))
    np.testing.assert_array_equal(part.to_array(np.dtype(np.float32)), values[3:7])
    turned = sliced(replace(weight, row_order=lambda: np.arange(10)[::-1]), WeightSpec("bias", (10,), 0, ((3, 7),)))
    np.testing.assert_array_equal(turned.to_array(np.dtype(np.float32)), values[::-1][3:7])


def test_a_block_is_not_cut() -> None:
    weight, _ = made("Q8_0", 3, 4)
    with pytest.raises(CheckpointError, match="columns 16 to 64 of weight would cut blocks of 32 of Q8_0"):
        sliced(weight, WeightSpec("weight", weight.shape, 1, ((16, 64),)))


def test_parts_of_a_mapped_file_stay_in_it(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(4 * 64 * 16384))
    with path.open("rb") as file:
        stored = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    weight = Weight("weight", "F32", (64, 16384), stored, path, lambda: np.arange(64)[::-1])
    for part in (
        sliced(weight, WeightSpec("weight", weight.shape, 0, ((3, 40),))),
        sliced(replace(weight, row_order=None), WeightSpec("weight", weight.shape, 1, ((4096, 8192),))),
    ):
        assert part.is_mapped
        assert not part.stored.flags.writeable
