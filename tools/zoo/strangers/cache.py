"""The KV cache: blocks of slots, given to sequences, and one rank's store."""

import numpy as np

BLOCK = 4  # slots a block


class Blocks:
    """Who has which block. Blocks of finished sequences are given out again, the last freed first."""

    def __init__(self, count: int) -> None:
        self.free = list(range(count - 1, -1, -1))

    def grow(self, table: list[int], length: int) -> None:
        """Give the sequence blocks for `length` tokens."""
        while len(table) * BLOCK < length:
            table.append(self.free.pop())

    def release(self, table: list[int]) -> None:
        self.free.extend(table)
        table.clear()


class Cache:
    """Keys and values of one rank, all layers."""

    def __init__(self, layers: int, blocks: int, kv_heads: int, head_dim: int, dtype: str) -> None:
        shape = (layers, blocks * BLOCK, kv_heads, head_dim)
        self.keys, self.values = np.zeros(shape, dtype), np.zeros(shape, dtype)

    def write(self, layer: int, slots: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """k, v: [tokens, KV heads, head_dim]; slots: [tokens]."""
        self.keys[layer, slots] = k
        self.values[layer, slots] = v

    def slots(self, table: list[int], length: int) -> np.ndarray:
        """Where the first `length` tokens of a sequence are."""
        at = np.arange(length)
        return np.asarray(table)[at // BLOCK] * BLOCK + at % BLOCK

    def read(self, layer: int, table: list[int], length: int) -> tuple[np.ndarray, np.ndarray]:
        """Each [keys, KV heads, head_dim], in float32."""
        slots = self.slots(table, length)
        return self.keys[layer, slots].astype(np.float32), self.values[layer, slots].astype(np.float32)
