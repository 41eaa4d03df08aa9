"""The limit of a GPU: bytes a second that it copies from its memory to its memory, read and written.

It is measured on the device that computes, in the same run as the figures beside it, by the kernel that copies arrays.
A GPU's peak of multiply-adds is not measured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from karat.ops.device import DeviceOps

COPIED_BYTES, EMULATED_BYTES = 1 << 28, 1 << 18  # of each of two arrays: more than caches hold
AT_LEAST_S = 0.02  # that one reading takes


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """`device_name` copies `bandwidth` bytes/s: the best of the runs, and their median."""

    device_name: str
    bandwidth: float
    bandwidth_median: float
    num_runs: int


class DeviceMeter:
    """Measures on the device of `ops`; each `run` is a reading. CapacityError if its memory has no room."""

    def __init__(self, ops: DeviceOps, *, copied_bytes: int | None = None) -> None:
        size = copied_bytes or (EMULATED_BYTES if ops.executor == "cuda-emulated" else COPIED_BYTES)
        arrays = [ops.floats(size // 4, "an array to measure what the GPU copies") for _ in range(2)]
        self._name, self._bytes = ops.device_name, 2 * size
        self._device = ops.kernels.device
        self._arrays = arrays  # recorded launches have their places alone
        self._copy = recorded_launches(self._device, lambda: self._device.copy(*arrays))
        self._readings: list[float] = []

    def run(self) -> None:
        self._readings.append(self._bytes / seconds_of(self._device, self._copy))

    def limits(self) -> DeviceLimits:
        """Of the runs so far. Call `run` at least once before."""
        return DeviceLimits(self._name, max(self._readings), median(self._readings), len(self._readings))


def recorded_launches(device: Any, launch: Callable[[], Any]) -> Callable[[], None]:
    """What `launch` launches, as one list; it is called twice now. Its arrays are to be kept while the list is used."""
    launch()
    device.begin_recording()
    launch()
    replay: Callable[[], None] = device.end_recording().replay
    return replay


def seconds_of(device: Any, call: Callable[[], Any]) -> float:
    """Of one of some calls that ask the device for something, in a row: as many as take AT_LEAST_S, or one."""
    one, number = device.array(np.zeros(1, np.float32)), np.empty(1, np.float32)

    def some(count: int) -> float:
        begun = perf_counter()
        for _ in range(count):
            call()
        one.read(number)  # it waits for them
        return (perf_counter() - begun) / count

    return some(max(1, int(AT_LEAST_S / some(1))))
