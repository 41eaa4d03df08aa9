"""Types of the emulated GPU: `python -m tools.native_stub _emulated` makes this file.

csrc/python/emulated_module.cpp says what they mean.
"""

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

class DeviceMatrix:
    def __init__(
        self,
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

class DeviceCache:
    def __init__(
        self, data: NDArray[numpy.uint8], stored_as: int, num_kv_heads: int, head_dim: int, layer_at: int
    ) -> None: ...

class Device:
    def __init__(self, seed: int) -> None: ...
    def quantise(self, activations: int, x: NDArray[numpy.float32], digits: NDArray[numpy.uint8]) -> None: ...
    def linear(
        self,
        matrix: DeviceMatrix,
        x: NDArray[numpy.float32],
        activations: int,
        leaves: Sequence[int],
        bias: NDArray[numpy.float32] | None,
        residual: NDArray[numpy.float32] | None,
        out: NDArray[numpy.float32],
    ) -> None: ...
    def embedding(self, table: DeviceMatrix, ids: NDArray[numpy.int32], out: NDArray[numpy.float32]) -> None: ...
    def select_rows(
        self, x: NDArray[numpy.float32], rows: NDArray[numpy.int32], out: NDArray[numpy.float32]
    ) -> None: ...
    def rms_norm(
        self, x: NDArray[numpy.float32], weight: NDArray[numpy.float32], eps: float, out: NDArray[numpy.float32]
    ) -> None: ...
    def silu_mul(
        self, gate: NDArray[numpy.float32], up: NDArray[numpy.float32], out: NDArray[numpy.float32]
    ) -> None: ...
    def sigmoid_mul(
        self, x: NDArray[numpy.float32], gate: NDArray[numpy.float32], out: NDArray[numpy.float32]
    ) -> None: ...
    def add(self, x: NDArray[numpy.float32], y: NDArray[numpy.float32], out: NDArray[numpy.float32]) -> None: ...
    def scale(self, x: NDArray[numpy.float32], factor: float, out: NDArray[numpy.float32]) -> None: ...
    def rope(
        self,
        x: NDArray[numpy.float32],
        positions: NDArray[numpy.int32],
        cos: NDArray[numpy.float32],
        sin: NDArray[numpy.float32],
        out: NDArray[numpy.float32],
    ) -> None: ...
    def route(
        self,
        logits: NDArray[numpy.float32],
        renormalised: bool,
        ids: NDArray[numpy.int32],
        weights: NDArray[numpy.float32],
    ) -> None: ...
    def experts(
        self,
        x: NDArray[numpy.float32],
        ids: NDArray[numpy.int32],
        weights: NDArray[numpy.float32],
        gates: Sequence[DeviceMatrix],
        ups: Sequence[DeviceMatrix],
        downs: Sequence[DeviceMatrix],
        first: int,
        leaves: Sequence[int],
        activations: int,
        out: NDArray[numpy.float32],
    ) -> None: ...
    def kv_write(
        self, k: NDArray[numpy.float32], v: NDArray[numpy.float32], cache: DeviceCache, slots: NDArray[numpy.int32]
    ) -> int: ...
    def attention(
        self,
        q: NDArray[numpy.float32],
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
        out: NDArray[numpy.float32],
    ) -> None: ...
