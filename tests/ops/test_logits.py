"""Logits that stay on a device: an array to whoever reads them, and nothing is read for a row's largest."""

import numpy as np
import pytest
from numpy.typing import NDArray

from karat import SamplingParams
from karat.engine.choosing.sampler import choose
from karat.ops import rows
from karat.ops.logits import MOST_LARGEST, DeviceLogits

LOGITS = np.array([[1, 3, 3, -2], [0, -1, np.nan, 5], [-7, -8, -9, -6]], np.float32)


class Device:
    """Counts how often its logits are read."""

    def __init__(self) -> None:
        self.num_reads = 0
        self.logits = DeviceLogits(self.read, np.array([1, -1, 3]), self.largest, LOGITS.shape)

    def largest(self, num: int) -> NDArray[np.int32]:
        order = np.argsort(-LOGITS, axis=-1, kind="stable")[:, :num].astype(np.int32)
        return np.stack([order, np.take_along_axis(LOGITS, order, -1).view(np.int32)], -1)

    def read(self) -> NDArray[np.float32]:
        self.num_reads += 1
        return LOGITS


def test_the_largest_is_known_without_reading() -> None:
    device = Device()
    assert [rows.finite_argmax(row) for row in device.logits] == [rows.finite_argmax(row) for row in LOGITS]
    assert [rows.finite_argmax(row) for row in device.logits[1:]] == [None, 3]
    assert device.logits[-1].top == 3 and len(device.logits[:2]) == 2 and device.logits.shape == (3, 4)
    assert device.num_reads == 0


def test_it_is_an_array_that_is_read_once() -> None:
    device = Device()
    first = device.logits[0]
    np.testing.assert_array_equal(first, LOGITS[0])
    np.testing.assert_array_equal(device.logits[1:], LOGITS[1:])
    np.testing.assert_array_equal(first[first > 1], [3, 3])
    np.testing.assert_array_equal(-first, -LOGITS[0])
    assert first.dtype == np.float32 and first.max() == 3 and first[3] == -2 and len(first) == 4
    assert rows.largest(first, 2).tolist() == [1, 2] and rows.log_sum_exp(first) == rows.log_sum_exp(LOGITS[0])
    target = np.empty_like(LOGITS)
    target[:] = device.logits
    np.testing.assert_array_equal(target, LOGITS)
    assert device.num_reads == 1


def test_the_largest_ones_come_without_the_others() -> None:
    """Ascending indices and their logits, for a number that is no power of two, too; too many are read."""
    device = Device()
    for row, stated in ((0, LOGITS[0]), (2, LOGITS[2])):
        for part in (device.logits[row], device.logits[:3][row], device.logits[row:][0]):
            for num in (1, 2, 3):
                ids, numbers = rows.largest_values(part, num)
                np.testing.assert_array_equal(ids, rows.largest(stated, num))
                np.testing.assert_array_equal(numbers, stated[ids])
    params = SamplingParams(temperature=0.7, top_k=2, top_p=0.9)
    given = {"token_ids": [0, 1], "prompt_len": 1, "seed": 3, "choice": 0}
    assert choose(device.logits[2], params, **given) == choose(LOGITS[2], params, **given)  # type: ignore[arg-type]
    assert device.num_reads == 0
    assert device.logits[0].largest(MOST_LARGEST + 1) is None
    np.testing.assert_array_equal(rows.largest_values(LOGITS[0], 2)[1], [3, 3])


def test_a_row_beyond_the_last() -> None:
    with pytest.raises(IndexError):
        Device().logits[3]
