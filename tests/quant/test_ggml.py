"""Every format by ggml itself: live where llama-cpp-python is installed, and a few blocks that it once made."""

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.quant import FORMATS
from tests.quant.blocks import random_blocks
from tests.quant.ggml import DATA, Ggml, sample

WRITTEN = [name for name, format_ in FORMATS.items() if format_.pack is not None]
SEARCHED = ("Q4_K", "Q5_K", "Q6_K")


def assert_same(got: NDArray[np.floating], expected: NDArray[np.float32]) -> None:
    """Bit for bit, but for the sign of a NaN, which C leaves open."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(got[numbers].view(np.uint32), expected[numbers].view(np.uint32))


def squared_error(name: str, blocks: NDArray[np.uint8], values: NDArray[np.float32]) -> float:
    back = FORMATS[name].dequantize(blocks).reshape(values.shape).astype(np.float64)
    return float(np.square(back - values).sum())


def check_blocks(name: str, values: NDArray[np.float32], expected: NDArray[np.uint8]) -> None:
    """The same blocks; of the formats that are searched for, an error of at most 1.02 times theirs."""
    blocks = FORMATS[name].quantize(values.reshape(-1, FORMATS[name].block_size))
    if name in SEARCHED:
        assert squared_error(name, blocks, values) <= 1.02 * squared_error(name, expected, values)
    else:
        np.testing.assert_array_equal(blocks, expected)


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    pytest.importorskip("llama_cpp", exc_type=ImportError)
    return Ggml()


@pytest.mark.peers
@pytest.mark.parametrize("name", FORMATS)
def test_live_values(name: str, ggml: Ggml) -> None:
    blocks = random_blocks(FORMATS[name], seed=13)
    assert_same(FORMATS[name].dequantize(blocks), ggml.dequantize(FORMATS[name], blocks))


@pytest.mark.peers
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("deviation", [1e-6, 0.02, 100.0])
def test_live_blocks(name: str, deviation: float, ggml: Ggml) -> None:
    values = np.random.default_rng(14).standard_normal((300, 256)) * deviation
    values = values.astype(np.float32)
    check_blocks(name, values, ggml.quantize(FORMATS[name], values))


@pytest.mark.parametrize("name", FORMATS)
def test_stored_values(name: str) -> None:
    with np.load(DATA) as stored:
        assert_same(FORMATS[name].dequantize(stored[f"{name}.blocks"]), stored[f"{name}.values"])


@pytest.mark.parametrize("name", [name for name in WRITTEN if name not in ("Q4_K", "Q5_K")])
def test_stored_blocks(name: str) -> None:
    """Two rows are too few to compare errors on, but Q6_K's search finds the same blocks."""
    with np.load(DATA) as stored:
        blocks = FORMATS[name].quantize(sample().reshape(-1, FORMATS[name].block_size))
        np.testing.assert_array_equal(blocks, stored[f"{name}.quantized"])
