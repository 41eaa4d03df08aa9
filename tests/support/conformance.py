"""Executors, random arguments of ops, and the bound of their results, for tests of every op on every executor."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.checkpoint.weights import Weight
from karat.ops import registry
from karat.ops.api import Loaded
from karat.ops.executor import Executor
from karat.ops.native import unavailable_reason

torch = pytest.importorskip("torch", reason="the independent implementation")
F = torch.nn.functional


def executors() -> Iterator[Any]:
    """Every executor of the registry in each of its dtypes; native only where the extension was built.

    One with the bits of another is left out: tests/ops/test_device.py compares these.
    Whatever else keeps one from running is an error (and `make test` fails where there is a compiler and no extension).
    """
    for executor, entry in registry.EXECUTORS.items():
        if entry.numerics is not None or (executor == "native" and unavailable_reason()):
            continue
        for dtype in entry.dtypes:
            yield pytest.param(registry.create(executor, dtype), id=f"{executor}-{dtype}")


every_executor = pytest.mark.parametrize("ops", list(executors()))
sizes = st.integers(1, 70)
seeds = st.integers(0, 2**32 - 1)
Array = NDArray[np.floating]


def draw(seed: int, *shapes: tuple[int, ...], dtype: str) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def weights(seed: int, *shapes: tuple[int, ...]) -> list[NDArray[np.float32]]:
    return [x.astype(np.float32) for x in draw(seed, *shapes, dtype="float64")]


def load(ops: Executor, values: NDArray[np.float32]) -> Loaded:
    """Values as a stored weight in the executor's layout."""
    data = np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8)
    return ops.load(Weight("weight", "F32", values.shape, data, Path("in-memory")))


def exact(x: Array) -> Any:
    return torch.from_numpy(np.asarray(x, np.float64))


def check(ops: Executor, got: Any, want: Any, bound: Any) -> None:
    value = ops.read(got)
    assert value.dtype == np.dtype(ops.dtype)
    assert value.shape == tuple(want.shape)
    rounding = np.finfo(ops.dtype).eps / 2
    assert (np.abs(value - want.numpy()) <= rounding * np.asarray(bound)).all()


def batch_of(lens: list[int], new: list[int], block_size: int = 4, seed: int = 0, vocab: int = 50) -> ForwardBatch:
    """Sequences of `lens` tokens whose last `new` are in the step, on shuffled blocks."""
    rng = np.random.default_rng(seed)
    counts = [-(-n // block_size) for n in lens]
    order = list(rng.permutation(sum(counts) + 2))
    tables = np.full((len(lens), max(counts)), -1, np.int32)
    for i, count in enumerate(counts):
        tables[i, :count] = [order.pop() for _ in range(count)]
    positions = np.concatenate([np.arange(n - m, n) for n, m in zip(lens, new, strict=True)])
    owner = np.repeat(np.arange(len(lens)), new)
    slots = tables[owner, positions // block_size] * block_size + positions % block_size
    return ForwardBatch.of(
        block_size,
        token_ids=rng.integers(0, vocab, len(positions)),
        positions=positions,
        query_starts=[0, *np.cumsum(new)],
        context_lens=lens,
        logit_rows=np.flatnonzero(rng.random(len(positions)) < 0.5),
        slots=[slots],
        block_tables=[tables],
    )
