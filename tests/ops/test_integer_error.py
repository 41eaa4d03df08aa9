"""int24 is as near to float64 as multiply-adds in float32 are: on Gaussian rows, and in a real model."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.config import embedded_model_path
from karat.engine.model_running import Preparation
from karat.models.opening import open_model
from karat.models.registry import build, read_config
from karat.ops.api import Linear, Op
from karat.ops.fma import fma
from karat.ops.integer_reference import IntegerOps
from karat.ops.integers import WIDTHS, CodedMatrix, coded, linear
from karat.ops.reference import ReferenceOps, whole_sum
from karat.quant import CODINGS, FORMATS
from karat.text import Tokenizer
from tests.support import forward
from tests.support.weights import weight_of

F32 = NDArray[np.float32]
INT24 = WIDTHS["int24"]
MOST = 1.2  # times the chain's RMS, which is what int24 is for


def chain(x: F32, matrix: CodedMatrix, ends: tuple[int, ...]) -> F32:
    """x @ matrix.T as version 4 of the contract had it for most formats: a multiply-add a code, then the scale."""
    size, leaves = matrix.sub_block, []
    codes = matrix.codes.astype(np.float32)
    for start, end in zip((0, *ends[:-1]), ends, strict=True):
        total = np.zeros((len(x), len(codes)), np.float32)
        for first in range(start, end, size):
            part = np.zeros_like(total)
            for column in range(first, first + size):
                part = fma(codes[:, column], x[:, column, None], part)
            total = fma(part, matrix.scales[:, first // size], total)
            if matrix.minimums is not None:
                total = fma(x[:, first : first + size].sum(axis=1)[:, None], matrix.minimums[:, first // size], total)
        leaves.append(total)
    while len(leaves) > 1:
        leaves = [left + right for left, right in zip(leaves[::2], leaves[1::2], strict=True)]
    return leaves[0]


class ChainOps(IntegerOps):
    """What IntegerOps load, multiplied by chains."""

    def apply(self, op: Op[Any]) -> Any:
        if not (isinstance(op, Linear) and isinstance(op.weight, CodedMatrix)):
            return super().apply(op)
        return whole_sum(op, chain(op.x, op.weight, op.leaves or op.weight.shape[1:]))


def of_the_chain(ours: NDArray[Any], theirs: NDArray[Any], exact: NDArray[Any]) -> float:
    """RMS of our error in those of the chain."""
    return float(np.linalg.norm(ours - exact) / np.linalg.norm(theirs - exact))


@pytest.mark.drawn(8)
@pytest.mark.parametrize("stored", CODINGS)
@pytest.mark.parametrize("columns", [576, 768, 1536])
def test_on_gaussian_rows(stored: str, columns: int) -> None:
    if columns % FORMATS[stored].block_size:
        pytest.skip("no whole blocks")
    rng = np.random.default_rng(columns)
    matrix = coded(weight_of(rng.normal(0, 0.03, (64, columns)).astype(np.float32), stored))
    x = rng.standard_normal((48, columns)).astype(np.float32)
    exact = x.astype(np.float64) @ matrix[:].astype(np.float64).T
    ends = (columns,)
    assert of_the_chain(linear(x, matrix, INT24, ends), chain(x, matrix, ends), exact) <= MOST


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["q4_0", "q8_0"])
def test_on_logits_of_a_real_model(quantize: str) -> None:
    checkpoint = open_model(embedded_model_path())
    config, prepare = read_config(checkpoint.config), Preparation(quantize, quiet=True)
    ids = Tokenizer.of(checkpoint).encode("Once upon a time, in a village by the sea, a girl found a small blue stone.")
    model = build(config, IntegerOps(INT24), checkpoint, num_positions=len(ids), prepare=prepare)
    exact_model = build(config, ReferenceOps("float64"), checkpoint, num_positions=len(ids), prepare=prepare)
    ours, theirs, exact = (
        forward.run(each, [ids], ops=ops, kv_dtype=kv_dtype)[0]
        for each, ops, kv_dtype in (
            (model, None, "float32"),
            (model, ChainOps(INT24), "float32"),
            (exact_model, None, "float64"),
        )
    )
    assert 0 < of_the_chain(ours, theirs, exact) <= MOST
