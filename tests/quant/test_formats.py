"""Every block format of ggml, by what the gguf package makes of the same bytes and values: bit for bit.

Covers: karat.quant.*.
"""

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from karat.errors import NumericsError
from karat.quant import FORMATS, GGML_FORMATS, Format
from karat.quant.iq_books import book
from tests.quant.blocks import random_blocks

# Those whose quantiser the gguf package lacks: see test_k_fit.py and test_level_fit.py.
SEARCHED = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
OF_GGML = [format_.name for format_ in GGML_FORMATS.values()]
WRITTEN = {name: format_ for name, format_ in FORMATS.items() if format_.pack is not None}
FINITE = ("MXFP4", "NVFP4")  # whatever the bytes
# Below, the inverse of a scale overflows and C leaves open which integers come of it; in float16 the scale is zero.
LEAST_SCALE = 2.0**-127


def bits(values: NDArray[np.floating]) -> NDArray[np.uint32]:
    return values.view(np.uint32)


def kind(format_: Format) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[format_.name]


@pytest.mark.parametrize("name", OF_GGML)
class TestDequantize:
    def test_sizes_and_numbers_are_those_of_ggml(self, name: str) -> None:
        format_ = FORMATS[name]
        assert format_.name == name
        assert GGML_FORMATS[format_.ggml_type] is format_
        assert kind(format_).value == format_.ggml_type
        assert gguf.GGML_QUANT_SIZES[kind(format_)] == (format_.block_size, format_.block_bytes)
        assert format_.num_bytes(3 * format_.block_size) == 3 * format_.block_bytes

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of gguf's own
    def test_bit_equal_to_the_gguf_package(self, name: str) -> None:
        format_ = FORMATS[name]
        blocks = random_blocks(format_, seed=1)
        expected = gguf.quants.dequantize(blocks, kind(format_))
        got = format_.dequantize(blocks)
        assert got.dtype == np.float32
        if name not in FINITE:
            assert np.isnan(expected).any()  # extreme scales are among them
        np.testing.assert_array_equal(bits(got), bits(expected))

    @pytest.mark.filterwarnings("error")
    def test_does_not_depend_on_chunks_or_layout(self, name: str) -> None:
        format_ = FORMATS[name]
        rng = np.random.default_rng(2)
        num_blocks = 2 * (1 << 16) // format_.block_size + 3
        blocks = rng.integers(0, 256, (num_blocks, format_.block_bytes), np.uint8)
        whole = format_.dequantize(blocks)
        strided = np.repeat(blocks, 2, axis=0)[::2]
        np.testing.assert_array_equal(bits(format_.dequantize(strided)), bits(whole))
        for part in (slice(0, 1), slice(7, 12), slice(num_blocks - 4, None)):
            np.testing.assert_array_equal(bits(format_.dequantize(blocks[part])), bits(whole[part]))
        wide = np.empty(whole.shape, np.float64)
        assert format_.dequantize(blocks, out=wide) is wide
        np.testing.assert_array_equal(wide, whole.astype(np.float64))
        assert format_.dequantize(blocks[:0]).shape == (0, format_.block_size)


@pytest.mark.parametrize("name", [name for name in WRITTEN if name not in SEARCHED])
class TestQuantizeExactly:
    @given(data=st.data())
    def test_bit_equal_to_the_gguf_package(self, name: str, data: st.DataObject) -> None:
        format_ = FORMATS[name]
        elements = st.floats(-60000, 60000, width=32)
        values = data.draw(arrays.arrays(np.float32, (3, format_.block_size), elements=elements))
        values[np.abs(values).max(axis=1) < 256 * LEAST_SCALE] = 0
        expected = gguf.quants.quantize(values, kind(format_))
        np.testing.assert_array_equal(format_.quantize(values), expected)

    @pytest.mark.parametrize("deviation", [1e-30, 1e-6, 0.02, 1.0, 1e4])
    def test_bit_equal_on_what_weights_look_like(self, name: str, deviation: float) -> None:
        format_ = FORMATS[name]
        values = np.random.default_rng(3).standard_normal((9000, format_.block_size)).astype(np.float32)
        values *= np.float32(deviation)
        expected = gguf.quants.quantize(values, kind(format_))
        np.testing.assert_array_equal(format_.quantize(values), expected)

    def test_quantising_again_changes_nothing(self, name: str) -> None:
        format_ = FORMATS[name]
        values = np.random.default_rng(4).standard_normal((500, format_.block_size)).astype(np.float32)
        once = format_.dequantize(format_.quantize(values)).astype(np.float32)
        again = format_.dequantize(format_.quantize(once))
        np.testing.assert_allclose(again, once, rtol=2**-9, atol=1e-3)  # a scale is rounded to float16 again


@pytest.mark.parametrize("name", WRITTEN)
class TestQuantize:
    @pytest.mark.filterwarnings("error")
    def test_zeros_and_what_float16_scales_lose(self, name: str) -> None:
        format_ = FORMATS[name]
        zeros = np.zeros((2, format_.block_size), np.float32)
        zeros[1] = -zeros[1]
        tiny = np.full((2, format_.block_size), 1e-44, np.float32)
        tiny[1, ::2] = -3e-39
        for values in (zeros,) if name == "MXFP4" else (zeros, tiny):  # its scales have float32's exponents
            assert not format_.dequantize(format_.quantize(values)).any()

    @pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
    def test_values_that_are_not_finite_are_refused(self, name: str, wrong: float) -> None:
        format_ = FORMATS[name]
        values = np.ones((5000, format_.block_size), np.float32)
        values[4321, 7] = wrong
        with pytest.raises(NumericsError, match=f"value {4321 * format_.block_size + 7} is {wrong}.*{name}"):
            format_.quantize(values)

    def test_values_beyond_the_scales_are_refused(self, name: str) -> None:
        format_ = FORMATS[name]
        values = np.ones((5, format_.block_size), np.float32)
        values[2, 3] = 3e38
        if name == "MXFP4":
            assert format_.dequantize(format_.quantize(values))[2, 3] == 12 * 2.0**124  # the nearest that there is
            return
        with pytest.raises(NumericsError, match=f"block is too large for the scales of {name}"):
            format_.quantize(values)


@pytest.mark.parametrize(("name", "steps"), [("Q8_0", 127), ("Q4_0", 8)])
def test_no_value_is_further_than_half_a_step(name: str, steps: int) -> None:
    """Independently of any other implementation; Q4_0 has no +8, so its other extreme loses a whole step."""
    format_ = FORMATS[name]
    values = np.random.default_rng(5).uniform(-1, 1, (4000, 32)).astype(np.float32)
    step = np.abs(values).max(axis=1, keepdims=True) / steps
    error = np.abs(format_.dequantize(format_.quantize(values)) - values) / step
    inner = values * -np.sign(values[np.arange(4000), np.abs(values).argmax(axis=1)])[:, None] <= 7.5 * step
    slack = steps * 2.0**-11  # of the float16 scale
    assert error[inner].max() <= 0.5 + slack
    assert error.max() <= (1 if name == "Q4_0" else 0.5) + slack


def test_halves_round_as_in_c() -> None:
    """Q8_0 away from zero (roundf), Q4_0 up (a cast after adding 8.5)."""
    values = np.zeros((1, 32), np.float32)
    values[0, :5] = 127, 0.5, -0.5, 1.5, -2.5
    assert FORMATS["Q8_0"].quantize(values)[0, 2:7].view(np.int8).tolist() == [127, 1, -1, 2, -3]
    values[0, :5] = -8, 0.5, -0.5, 1.5, 8
    assert (FORMATS["Q4_0"].quantize(values)[0, 2:7] & 15).tolist() == [0, 9, 8, 10, 15]


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"])
def test_code_books_are_those_of_the_gguf_package(name: str) -> None:
    kind_ = getattr(gguf.quants, name)
    kind_.init_grid()
    np.testing.assert_array_equal(book(name), kind_.grid[0, 0])


def test_every_type_that_the_gguf_package_dequantises_is_there() -> None:
    assert set(FORMATS) | {"BF16"} >= {kind_.name for kind_ in gguf.quants._type_traits}


def test_the_example_of_the_documentation_is_the_file() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "adding-a-format.md").read_text(encoding="utf-8")
    example = text.partition("```python\n")[2].partition("```")[0]
    assert example == (root / "src" / "karat" / "quant" / "q4_1.py").read_text(encoding="utf-8")
