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
    def view(self, first: int, shape: Sequence[int]) -> Array: ...
    @overload
    def read(self, to: NDArray[numpy.float32]) -> None: ...
    @overload
    def read(self, to: NDArray[numpy.int32]) -> None: ...

class Recorded:
    def replay(self) -> None: ...

class MatrixTable:
    def __init__(self, device: Device, matrices: Sequence[DeviceMatrix]) -> None: ...

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
    def floats(self, shape: Sequence[int]) -> Array: ...
    @overload
    def write(self, to: Array, values: NDArray[numpy.float32]) -> None: ...
    @overload
    def write(self, to: Array, values: NDArray[numpy.int32]) -> None: ...
    def fill(self, to: Array, byte: int) -> None: ...
    def copy(self, to: Array, source: Array) -> None: ...
    def host_array(self, size: int) -> NDArray[numpy.float32]: ...
    def begin_recording(self) -> None: ...
    def end_recording(self) -> Recorded: ...
    def quantise(self, x: Array, activations: int) -> Array: ...
    def linears(
        self,
        matrices: Sequence[DeviceMatrix],
        x: Array,
        digits: Array | None,
        activations: int,
        leaves: Sequence[int],
        biases: Sequence[Array | None],
        residual: Array | None,
    ) -> list[Array]: ...
    def embedding(self, table: DeviceMatrix, ids: Array) -> Array: ...
    def select_rows(self, x: Array, rows: Array) -> Array: ...
    def rms_norm(self, x: Array, weight: Array, eps: float, activations: int) -> tuple[Array, Array | None]: ...
    def l2_norm(self, x: Array, eps: float, factor: float) -> Array: ...
    def square_sums(
        self, q: Array, k: Array, q_leaves: Sequence[int], k_leaves: Sequence[int], k_first: int
    ) -> Array: ...
    def part_norm(self, x: Array, squares: Array, weight: Array, eps: float, part: int, count: int) -> Array: ...
    def silu_mul(self, gate: Array, up: Array, activations: int) -> tuple[Array, Array | None]: ...
    def gelu_mul(self, gate: Array, up: Array, activations: int) -> tuple[Array, Array | None]: ...
    def sigmoid_mul(self, x: Array, gate: Array) -> Array: ...
    def add(self, x: Array, y: Array) -> Array: ...
    def mul(self, x: Array, y: Array) -> Array: ...
    def scale_by(self, x: Array, weight: Array) -> Array: ...
    def sigmoid(self, x: Array) -> Array: ...
    def scale(self, x: Array, factor: float) -> Array: ...
    def soft_cap(self, x: Array, cap: float) -> Array: ...
    def split(self, x: Array, sizes: Sequence[int], groups: int) -> list[Array]: ...
    def rope(self, x: Array, positions: Array, cos: Array, sin: Array) -> Array: ...
    def route(
        self,
        logits: Array,
        chosen: int,
        by_sigmoid: bool,
        renormalised: bool,
        groups: int,
        chosen_groups: int,
        outside: float,
        plus: float,
        least: float,
        scale: float,
        bias: Array | None,
        scales: Array | None,
    ) -> tuple[Array, Array]: ...
    def experts(
        self,
        x: Array,
        ids: Array,
        weights: Array,
        gates: MatrixTable,
        ups: MatrixTable,
        downs: MatrixTable,
        first: int,
        leaves: Sequence[int],
        by_columns: bool,
        activations: int,
        biases: Sequence[Array | None],
        clamp: tuple[float, float] | None,
        by_gelu: bool,
        most_floats: int,
    ) -> Array: ...
    def causal_conv(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        state: Array,
        query_starts: Array,
        reads: Array,
        writes: Array,
        silu: bool,
    ) -> Array: ...
    def decay(self, a: Array, bias: Array, rate: Array, of_log: bool) -> Array: ...
    def delta_rule(
        self,
        q: Array,
        k: Array,
        v: Array,
        decay: Array,
        beta: Array,
        state: Array,
        query_starts: Array,
        reads: Array,
        writes: Array,
        key_heads: Array,
    ) -> Array: ...
    def kv_write(self, k: Array, v: Array, cache: DeviceCache, slots: Array, lost: Array) -> None: ...
    def rope_kv_write(
        self,
        q: Array,
        k: Array,
        v: Array,
        positions: Array,
        cos: Array,
        sin: Array,
        cache: DeviceCache,
        slots: Array,
        lost: Array,
    ) -> Array: ...
    def attention(
        self,
        q: Array,
        cache: DeviceCache,
        positions: Array,
        query_starts: Array,
        block_tables: Array,
        splits: int,
        block_size: int,
        group_heads: int,
        first_head: int,
        scale: float,
        cap: float,
        sinks: Array | None,
        window: int,
        scores: NDArray[numpy.float32] | None,
        score_seq: int,
        activations: int,
    ) -> tuple[Array, Array | None]: ...
    def finite_argmax(self, logits: Array, tops: Array) -> None: ...
    def largest(self, logits: Array, kept: int) -> Array: ...

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
    def in_blocks(self) -> bool: ...
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
