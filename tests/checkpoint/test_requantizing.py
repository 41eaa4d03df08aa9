"""Quantising a weight in memory gives the blocks of its values, or the weight itself and a reason."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from karat.checkpoint import Weight, requantize
from karat.checkpoint import requantizing as module
from karat.errors import NumericsError
from karat.quant import FORMATS

FILE = Path("models/fox/model.safetensors")


def stored(values: NDArray[np.float32], dtype: str) -> Weight:
    """`values`, which bfloat16 must hold exactly, as they are stored."""
    if dtype == "BF16":
        data = (values.view(np.uint32) >> np.uint32(16)).astype("<u2")
    else:
        data = values.astype("<f4" if dtype == "F32" else "<f2")
    return Weight("model.fox.weight", dtype, values.shape, data.reshape(-1).view(np.uint8), FILE)


def some_values(shape: tuple[int, ...]) -> NDArray[np.float32]:
    values = np.random.default_rng(6).standard_normal(shape).astype(np.float32)
    rounded = (values.view(np.uint32) & np.uint32(0xFFF00000)).view(np.float32)  # exact in float16 and bfloat16
    return rounded.copy()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5_1"])
def test_blocks_and_values(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_VALUES", 4096)  # several chunks
    format_ = FORMATS[name]
    values = some_values((37, 2 * 256))
    weight = stored(values, dtype)
    done = requantize(weight, format_)
    assert done.kept_because is None
    quantised = done.weight
    assert (quantised.name, quantised.shape, quantised.file) == (weight.name, weight.shape, weight.file)
    assert quantised.dtype == name
    assert quantised.is_quantised
    assert not weight.is_quantised
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    assert quantised.data.tobytes() == expected.tobytes()
    assert quantised.num_bytes == format_.num_bytes(values.size)
    assert not quantised.data.flags.writeable
    exact = gguf.quants.dequantize(expected, gguf.GGMLQuantizationType[name])
    for target in (np.float32, np.float64):
        array = quantised.to_array(np.dtype(target))
        assert array.dtype == target
        np.testing.assert_array_equal(array, exact.astype(target))


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((4, 48), "model.fox.weight stays F32: its rows have 48 values, and a block of Q8_0 takes 32"),
        ((64,), "model.fox.weight stays F32: vectors are small and keep their precision"),
        ((), "model.fox.weight stays F32: vectors are small and keep their precision"),
    ],
)
def test_what_does_not_fit_is_kept(shape: tuple[int, ...], reason: str) -> None:
    weight = stored(some_values(shape), "F32")
    done = requantize(weight, FORMATS["Q8_0"])
    assert done.weight is weight
    assert done.kept_because == reason


def test_what_is_quantised_is_kept() -> None:
    weight = requantize(stored(some_values((2, 64)), "F32"), FORMATS["Q8_0"]).weight
    done = requantize(weight, FORMATS["Q4_0"])
    assert done.weight is weight
    assert done.kept_because is not None
    assert "quantised already" in done.kept_because


def test_an_empty_weight() -> None:
    done = requantize(stored(np.empty((0, 64), np.float32), "F32"), FORMATS["Q4_0"])
    assert (done.weight.dtype, done.weight.num_bytes) == ("Q4_0", 0)
    assert done.weight.to_array(np.dtype(np.float32)).shape == (0, 64)


def test_a_fault_names_the_tensor() -> None:
    values = some_values((4, 64))
    values[3, 2] = np.nan
    with pytest.raises(
        NumericsError, match=r"model\.safetensors: model\.fox\.weight, from value 0 on: value 194 is nan"
    ):
        requantize(stored(values, "F32"), FORMATS["Q8_0"])
