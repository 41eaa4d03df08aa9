"""Types of the emulated GPU: `python -m tools.native_stub _emulated` makes this file.

csrc/python/device_module.cpp says what they mean.
"""

from collections.abc import Sequence
from typing import overload

import numpy
from numpy.typing import NDArray

class DeviceError(Exception):
    pass

class OutOfDeviceMemoryError(Exception):
    pass

def why_no_device() -> str: ...

class Array:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def is_float(self) -> bool: ...
    def __len__(self) -> int: ...
    def reshape(self, shape: Sequence[int]) -> Array: ...
    @overload
    def read(self, to: NDArray[numpy.float32]) -> None: ...
    @overload
    def read(self, to: NDArray[numpy.int32]) -> None: ...

class Device:
    def __init__(self, number: int) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def free_bytes(self) -> int: ...
    @overload
    def array(self, values: NDArray[numpy.float32]) -> Array: ...
    @overload
    def array(self, values: NDArray[numpy.int32]) -> Array: ...
    def linear(
        self,
        matrix: DeviceMatrix,
        x: Array,
        activations: int,
        leaves: Sequence[int],
        bias: Array | None,
        residual: Array | None,
    ) -> Array: ...
    def embedding(self, table: DeviceMatrix, ids: NDArray[numpy.int32]) -> Array: ...
    def select_rows(self, x: Array, rows: NDArray[numpy.int32]) -> Array: ...
    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array: ...
    def silu_mul(self, gate: Array, up: Array) -> Array: ...
    def sigmoid_mul(self, x: Array, gate: Array) -> Array: ...
    def add(self, x: Array, y: Array) -> Array: ...
    def scale(self, x: Array, factor: float) -> Array: ...
    def rope(self, x: Array, positions: NDArray[numpy.int32], cos: Array, sin: Array) -> Array: ...
    def route(self, logits: Array, chosen: int, renormalised: bool) -> tuple[Array, Array]: ...
    def experts(
        self,
        x: Array,
        ids: Array,
        weights: Array,
        gates: Sequence[DeviceMatrix],
        ups: Sequence[DeviceMatrix],
        downs: Sequence[DeviceMatrix],
        first: int,
        leaves: Sequence[int],
        activations: int,
    ) -> Array: ...
    def kv_write(self, k: Array, v: Array, cache: DeviceCache, slots: NDArray[numpy.int32]) -> int: ...
    def attention(
        self,
        q: Array,
        cache: DeviceCache,
        positions: NDArray[numpy.int32],
        query_starts: NDArray[numpy.int32],
        block_tables: NDArray[numpy.int32],
        block_size: int,
        group_heads: int,
        first_head: int,
        scale: float,
        window: int,
        scores: NDArray[numpy.float32] | None,
        score_seq: int,
    ) -> Array: ...

class DeviceMatrix:
    def __init__(
        self,
        device: Device,
        stored_as: str,
        rows: int,
        columns: int,
        stored: NDArray[numpy.uint8],
        row_bytes: int,
        first_byte: int,
        order: NDArray[numpy.int64] | None,
    ) -> None: ...
    @property
    def format(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def stored_bytes(self) -> int: ...
    def read(self, stored: NDArray[numpy.uint8]) -> None: ...

class CacheMemory:
    def __init__(self, device: Device, regions: int, region_bytes: int) -> None: ...

class DeviceCache:
    def __init__(
        self, memory: CacheMemory, stored_as: int, num_kv_heads: int, head_dim: int, layer_at: int
    ) -> None: ...
