"""The K formats' quantisers, by ggml's search written out value by value."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.ops.native import supported_isas, unavailable_reason
from karat.ops.native_plan import native
from karat.quant import FORMATS, k_fit
from karat.quant.bits import nibbles
from tests.quant.ggml import SHAPES

F = np.float32
Row = NDArray[np.float32]


def nearest(value: np.floating, low: int, high: int) -> np.float32:
    return F(min(max(np.rint(value), low), high))


def fit_group(x: Row, largest: int, first: float, num_steps: int) -> tuple[np.float32, np.float32, list[np.float32]]:
    """make_qkx2_quants with squared differences and steps of 0.1: scale, minimum and integers of one group of 32."""
    square = sum((value * value for value in x), F(0))
    w = [np.sqrt(square / F(32)) + abs(value) for value in x]
    low, high = min(x.min(), F(0)), x.max()
    if low == high:
        return F(0), -low, [F(0)] * 32
    sum_w, sum_x = sum(w, F(0)), sum((a * b for a, b in zip(w, x, strict=True)), F(0))

    def error(scale: np.float32, minimum: np.float32, quants: list[np.float32]) -> np.float32:
        total = F(0)
        for weight, q, value in zip(w, quants, x, strict=True):
            difference = scale * q + minimum - value
            total += weight * (difference * difference)
        return total

    inverse = F(largest) / (high - low)
    scale, minimum = F(1) / inverse, low
    integers = [nearest(inverse * (value - low), 0, largest) for value in x]
    best = error(scale, minimum, integers)
    for number in range(num_steps + 1):
        inverse = (F(first) + F(0.1) * F(number) + F(largest)) / (high - minimum)  # from the best minimum so far
        tried = [nearest(inverse * (value - minimum), 0, largest) for value in x]
        sl, sl2, sxl = F(0), F(0), F(0)
        for weight, q, value in zip(w, tried, x, strict=True):
            sl, sl2, sxl = sl + weight * q, sl2 + weight * q * q, sxl + weight * q * value
        determinant = sum_w * sl2 - sl * sl
        if determinant > 0:
            own_scale = (sum_w * sxl - sum_x * sl) / determinant
            own_minimum = (sl2 * sum_x - sl * sxl) / determinant
            if own_minimum > 0:
                own_scale, own_minimum = sxl / sl2, F(0)
            if (found := error(own_scale, own_minimum, tried)) < best:
                scale, minimum, best, integers = own_scale, own_minimum, found, tried
    return scale, -minimum, integers


def with_minimum(x: Row, largest: int, first: float, num_steps: int) -> tuple[Row, Row]:
    """quantize_row_q4_K_ref and quantize_row_q5_K_ref of one block of 256: its values and its integers."""
    fitted = [fit_group(group, largest, first, num_steps) for group in x.reshape(8, 32)]
    top_scale, top_minimum = (max(F(0), *(group[part] for group in fitted)) for part in (0, 1))
    d, dmin = F(np.float16(top_scale / F(63))), F(np.float16(top_minimum / F(63)))
    values, integers = [], []
    for group, (scale, minimum, quants) in zip(x.reshape(8, 32), fitted, strict=True):
        ds = d * nearest(F(63) / top_scale * scale if top_scale else F(0), 0, 63)
        dm = dmin * nearest(F(63) / top_minimum * minimum if top_minimum else F(0), 0, 63)
        kept = [nearest((value + dm) / ds, 0, largest) for value in group] if ds else quants
        values += [ds * q - dm for q in kept]
        integers += kept
    return np.array(values), np.array(integers)


def fit_symmetric(x: Row) -> tuple[np.float32, list[np.float32]]:
    """make_qx_quants with squared weights: the scale and integers (from -32 to 31) of one group of 16."""
    extreme = x[np.abs(x).argmax()]
    if abs(extreme) < F(1e-15):
        return F(0), [F(-32)] * 16
    scale, best, integers = F(0), F(0), [F(0)] * 16
    for number in (0, *range(-9, 0), *range(1, 10)):
        inverse = -(F(32) + F(0.1) * F(number)) / extreme
        tried = [nearest(inverse * value, -32, 31) for value in x]
        sxl, sl2 = F(0), F(0)
        for q, value in zip(tried, x, strict=True):
            w = value * value
            sxl, sl2 = sxl + w * value * q, sl2 + w * q * q
        if number == 0 or (sl2 > 0 and sxl * sxl > best * sl2):
            scale = sxl / sl2 if sl2 else F(0)
            best, integers = scale * sxl, tried
    return scale, integers


def symmetric(x: Row) -> tuple[Row, Row]:
    """quantize_row_q6_K_ref of one block of 256: its values and its integers."""
    fitted = [fit_symmetric(group) for group in x.reshape(16, 16)]
    largest = max((scale for scale, _ in fitted), key=abs)
    d = F(np.float16(F(1) / (F(-128) / largest))) if abs(largest) >= F(1e-15) else F(0)
    values, integers = [], []
    for group, (scale, quants) in zip(x.reshape(16, 16), fitted, strict=True):
        ds = d * (min(F(127), np.rint(F(-128) / largest * scale)) if d else F(0))
        kept = [nearest(value / ds, -32, 31) for value in group] if ds else quants
        values += [ds * q for q in kept]
        integers += kept
    return np.array(values), np.array(integers)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "first", "num_steps"), [("Q4_K", -1.0, 20), ("Q5_K", -0.5, 15), ("Q6_K", 0, 0)])
def test_the_search_is_ggmls(name: str, first: float, num_steps: int, shape: str) -> None:
    """Bit for bit: values, and the integers, also of groups whose scale is rounded to zero."""
    format_ = FORMATS[name]
    rng = np.random.default_rng(8)
    x = np.array([0.02 * SHAPES[shape](rng) for _ in range(6)]).astype(np.float32)
    blocks = format_.quantize(x)
    with np.errstate(all="ignore"):
        expected = [
            symmetric(r) if name == "Q6_K" else with_minimum(r, 2 ** int(name[1]) - 1, first, num_steps) for r in x
        ]
    np.testing.assert_array_equal(format_.dequantize(blocks), np.array([values for values, _ in expected]))
    if name == "Q4_K":
        integers = nibbles(np.ascontiguousarray(blocks[:, 16:]), 32).reshape(-1, 256)
        np.testing.assert_array_equal(integers, np.array([found for _, found in expected]))


@pytest.mark.parametrize("isa", [] if unavailable_reason() else supported_isas())
@settings(max_examples=40)
@given(data=st.data(), num_groups=st.integers(1, 70), seed=st.integers(0, 2**32 - 1))
def test_every_build_has_the_bits_of_numpy(isa: str, data: st.DataObject, num_groups: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = data.draw(st.sampled_from(list(SHAPES)))
    deviation = data.draw(st.sampled_from([1e-12, 1e-3, 1.0, 1e9]))
    x = np.concatenate([SHAPES[shape](rng) for _ in range(9)])[: 32 * num_groups].astype(np.float32) * F(deviation)
    for largest, first, num_steps in ((15, -1.0, 20), (31, -0.5, 15)):
        groups = x.reshape(-1, 32)
        with np.errstate(all="ignore"):
            expected = k_fit.fit_with_minimum(groups, largest, first, 0.1, num_steps)
        got = [np.empty_like(part) for part in expected]
        native().fit_with_minimum(isa, groups, largest, first, 0.1, num_steps, *got)
        for found, part in zip(got, expected, strict=True):
            np.testing.assert_array_equal(found, part)
    groups = x.reshape(-1, 16)
    with np.errstate(all="ignore"):
        expected_symmetric = k_fit.fit_symmetric(groups, 32)
    found_symmetric = [np.empty_like(part) for part in expected_symmetric]
    native().fit_symmetric(isa, groups, 32, *found_symmetric)
    for found, part in zip(found_symmetric, expected_symmetric, strict=True):
        np.testing.assert_array_equal(found, part)


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    if unavailable_reason():
        pytest.skip(str(unavailable_reason()))
    values, one = np.zeros((3, 16), np.float32), np.zeros((3, 1), np.float32)
    for scales, integers in ((one[:2], np.zeros((3, 16), np.int8)), (one, np.zeros((3, 15), np.int8))):
        with pytest.raises(ValueError, match="do not fit together"):
            native().fit_symmetric("generic", values, 32, scales, integers)


@pytest.mark.parametrize(("name", "most"), [("Q4_K", 0.075), ("Q5_K", 0.038), ("Q6_K", 0.0186)])
def test_error_on_what_weights_look_like(name: str, most: float) -> None:
    """Of normal values, relative: below what 4, 5 and 6 bits with one scale for 32 values reach (Q4_0 has 0.086)."""
    format_ = FORMATS[name]
    x = np.random.default_rng(9).standard_normal((400, 256)).astype(np.float32)
    error = format_.dequantize(format_.quantize(x)) - x
    assert np.sqrt((error**2).mean() / (x**2).mean()) < most
