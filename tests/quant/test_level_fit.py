"""The quantisers of IQ4_NL and IQ4_XS, by ggml's search written out value by value."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from karat.machine.extension import native
from karat.ops.native import supported_isas, unavailable_reason
from karat.quant import FORMATS, level_fit
from karat.quant.bits import nibbles
from karat.quant.iq4_nl import LEVELS
from tests.quant.ggml import SHAPES
from tests.quant.test_k_fit import groups_of_32

F = np.float32
Row = NDArray[np.float32]


def nearest(value: np.floating) -> int:
    """best_index_int8: the level with the smallest difference; of two, the upper one."""
    distances = [abs(float(level) - float(value)) for level in LEVELS]
    return max(number for number, distance in enumerate(distances) if distance == min(distances))


def fit_group(x: Row) -> np.float32:
    """The scale that quantize_row_iq4_nl_impl finds for one group of 32."""
    extreme = x[np.abs(x).argmax()]
    if abs(extreme) < F(1e-15):
        return F(0)

    def sums(inverse: np.float32) -> tuple[np.float32, np.float32]:
        sxl, sl2 = F(0), F(0)
        for value in x:
            level, weight = LEVELS[nearest(inverse * value)], value * value
            sxl, sl2 = sxl + weight * level * value, sl2 + weight * level * level
        return sxl, sl2

    sxl, sl2 = sums(F(1) / (-extreme / F(-127)))
    scale = sxl / sl2
    best = scale * sxl
    for number in range(-7, 8):
        sxl, sl2 = sums((F(number) + F(-127)) / extreme)
        if sl2 > 0 and sxl * sxl > best * sl2:
            scale = sxl / sl2
            best = scale * sxl
    return scale


def by_hand(name: str, x: Row) -> tuple[Row, list[int]]:
    """What quantize_iq4_nl or quantize_iq4_xs makes of a row of 256: its values and the numbers of its levels."""
    groups = x.reshape(-1, 32)
    scales = [fit_group(group) for group in groups]
    stored = [F(np.float16(scale)) for scale in scales]
    if name == "IQ4_XS":
        top = max(scales, key=abs)
        factor = -top / F(32)
        integers = [min(max(np.rint(F(1) / factor * scale), -32), 31) if factor else F(0) for scale in scales]
        scales, stored = [factor * q for q in integers], [F(np.float16(factor)) * q for q in integers]
    values, numbers = [], []
    for group, scale, kept in zip(groups, scales, stored, strict=True):
        chosen = [nearest((F(1) / scale if scale else F(0)) * value) for value in group]
        values += [kept * LEVELS[number] for number in chosen]
        numbers += chosen
    return np.array(values), numbers


@pytest.mark.drawn(6)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["IQ4_NL", "IQ4_XS"])
def test_the_search_is_ggmls(name: str, shape: str) -> None:
    """Bit for bit: values, and the levels, also of groups whose scale is zero."""
    format_ = FORMATS[name]
    rng = np.random.default_rng(8)
    x = np.array([0.02 * SHAPES[shape](rng) for _ in range(4)]).astype(np.float32)
    x[3, 64:96] = 0
    blocks = format_.quantize(x.reshape(-1, format_.block_size))
    with np.errstate(all="ignore"):
        expected = [by_hand(name, row) for row in x]
    values = np.array([values for values, _ in expected])
    np.testing.assert_array_equal(format_.dequantize(blocks).reshape(values.shape), values)
    chosen = nibbles(blocks[:, format_.block_bytes - format_.block_size // 2 :], 16).reshape(-1, 256)
    np.testing.assert_array_equal(chosen, np.array([numbers for _, numbers in expected]))


@pytest.mark.parametrize("isa", [] if unavailable_reason() else supported_isas())
@settings(max_examples=40)
@given(x=groups_of_32([1e-18, 1e-12, 1e-3, 1.0, 1e9]))
def test_every_build_has_the_bits_of_numpy(isa: str, x: NDArray[np.float32]) -> None:
    groups = x.reshape(-1, 32)
    with np.errstate(all="ignore"):
        scales = level_fit.fit_levels(groups, LEVELS, 7)
        inverses = F(1) / scales
        chosen = level_fit.nearest_levels(groups, LEVELS, inverses)
    found, found_levels = np.empty_like(scales), np.empty_like(chosen)
    native().fit_levels(isa, groups, LEVELS, 7, found)
    native().nearest_levels(isa, groups, LEVELS, inverses, found_levels)
    np.testing.assert_array_equal(found, scales)
    np.testing.assert_array_equal(found_levels, chosen)


MIDDLES = (LEVELS[:-1] + LEVELS[1:]) / 2


@given(
    arrays.arrays(
        np.float32,
        (2, 32),
        elements=st.floats(-300, 300, width=32)
        | st.sampled_from(
            [float(each) for m in MIDDLES for each in (m, np.nextafter(m, F(999)), np.nextafter(m, F(-999)))]
        ),
    )
)
def test_the_nearest_level_is_the_nearest(x: NDArray[np.float32]) -> None:
    """Around every middle too."""
    chosen = level_fit.nearest_levels(x, LEVELS, np.ones((2, 1), np.float32))
    assert chosen.tolist() == [[nearest(value) for value in row] for row in x]


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    if unavailable_reason():
        pytest.skip(str(unavailable_reason()))
    values, one, chosen = np.zeros((3, 32), np.float32), np.zeros((3, 1), np.float32), np.zeros((3, 32), np.int8)
    with pytest.raises(ValueError, match="do not fit together"):
        native().fit_levels("generic", values, LEVELS, 7, one[:2])
    with pytest.raises(ValueError, match="do not fit together"):
        native().fit_levels("generic", np.zeros((3, 16), np.float32), LEVELS, 7, one)
    for wrong in ((values, LEVELS, one[:2], chosen), (values, LEVELS, one, chosen[:2])):
        with pytest.raises(ValueError, match="do not fit together"):
            native().nearest_levels("generic", *wrong)
    with pytest.raises(TypeError):
        native().fit_levels("generic", values, LEVELS[:15], 7, one)


@pytest.mark.parametrize("name", ["IQ4_NL", "IQ4_XS"])
def test_error_on_what_weights_look_like(name: str) -> None:
    """Of normal values, relative: less than Q4_0's 0.086, for which the levels are uneven."""
    format_ = FORMATS[name]
    x = np.random.default_rng(9).standard_normal((400, format_.block_size)).astype(np.float32)
    error = format_.dequantize(format_.quantize(x)) - x
    assert np.sqrt((error**2).mean() / (x**2).mean()) < 0.078
