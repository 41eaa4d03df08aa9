"""Every format by ggml itself: live where llama-cpp-python is installed, and a few blocks that it once made."""

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.quant import FORMATS, GGML_FORMATS, k_native
from tests.quant.blocks import random_blocks
from tests.quant.ggml import DATA, SHAPES, Ggml

OF_GGML = [format_.name for format_ in GGML_FORMATS.values()]
WRITTEN = [name for name, format_ in FORMATS.items() if format_.pack is not None]


def assert_same(got: NDArray[np.floating], expected: NDArray[np.float32]) -> None:
    """Bit for bit, but for the sign of a NaN, which C leaves open."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(got[numbers].view(np.uint32), expected[numbers].view(np.uint32))


def check_blocks(name: str, values: NDArray[np.float32], expected: NDArray[np.uint8]) -> None:
    """The same blocks, those that are searched for too."""
    blocks = FORMATS[name].quantize(values.reshape(-1, FORMATS[name].block_size))
    np.testing.assert_array_equal(blocks, expected)


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    pytest.importorskip("llama_cpp", exc_type=ImportError)
    return Ggml()


@pytest.mark.peers
@pytest.mark.parametrize("name", OF_GGML)
def test_live_values(name: str, ggml: Ggml) -> None:
    blocks = random_blocks(FORMATS[name], seed=13)
    assert_same(FORMATS[name].dequantize(blocks), ggml.dequantize(FORMATS[name], blocks))


@pytest.mark.peers
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("deviation", [1e-6, 0.02, 100.0])
def test_live_blocks(name: str, shape: str, deviation: float, ggml: Ggml) -> None:
    rng = np.random.default_rng(14)
    values = np.array([SHAPES[shape](rng) * deviation for _ in range(100)]).astype(np.float32)
    check_blocks(name, values, ggml.quantize(FORMATS[name], values))


@pytest.mark.parametrize("name", OF_GGML)
def test_stored_values(name: str) -> None:
    with np.load(DATA) as stored:
        assert_same(FORMATS[name].dequantize(stored[f"{name}.blocks"]), stored[f"{name}.values"])


@pytest.mark.parametrize("has_native", [True, False])
@pytest.mark.parametrize("name", WRITTEN)
def test_stored_blocks(name: str, has_native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the extension's search and by NumPy's."""
    monkeypatch.setattr(k_native, "_HAS_NATIVE", has_native and k_native._HAS_NATIVE)
    with np.load(DATA) as stored:
        check_blocks(name, stored["sample"], stored[f"{name}.quantized"])
