"""The K formats' quantisers, by ggml's searches written out value by value."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from karat.machine.extension import native
from karat.ops.native import supported_isas, unavailable_reason
from karat.quant import FORMATS, k_fit
from karat.quant.bits import fields, nibbles
from tests.quant.ggml import SHAPES

F = np.float32
Row = NDArray[np.float32]


def nearest(value: np.floating, low: int, high: int) -> np.float32:
    return F(min(max(np.rint(value), low), high))


def fit_group(
    x: Row, largest: int, first: float, num_steps: int, *, absolute: bool
) -> tuple[np.float32, np.float32, list[np.float32]]:
    """make_qkx2_quants with steps of 0.1: scale, minimum and integers of one group.

    The errors are squared, or, if `absolute`, their magnitudes count.
    """
    square = sum((value * value for value in x), F(0))
    spread = F(0) if absolute else np.sqrt(square / F(32))
    w = [spread + abs(value) for value in x]
    low, high = min(x.min(), F(0)), x.max()
    if low == high:
        return F(0), -low, [F(0)] * len(x)
    sum_w, sum_x = sum(w, F(0)), sum((a * b for a, b in zip(w, x, strict=True)), F(0))

    def error(scale: np.float32, minimum: np.float32, quants: list[np.float32]) -> np.float32:
        total = F(0)
        for weight, q, value in zip(w, quants, x, strict=True):
            difference = scale * q + minimum - value
            total += weight * (abs(difference) if absolute else difference * difference)
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


def with_minimum(x: Row, size: int, bits: int, largest: int, first: float, num_steps: int) -> tuple[Row, Row]:
    """quantize_row_q2_K_ref, q4_K and q5_K of one block of 256 in groups of `size`: its values and its integers.

    Scales and minimums have `bits` bits.
    """
    groups, steps = x.reshape(-1, size), F(2**bits - 1)
    fitted = [fit_group(group, largest, first, num_steps, absolute=size == 16) for group in groups]
    top_scale, top_minimum = (max(F(0), *(group[part] for group in fitted)) for part in (0, 1))
    d, dmin = F(np.float16(top_scale / steps)), F(np.float16(top_minimum / steps))
    values, integers = [], []
    for group, (scale, minimum, quants) in zip(groups, fitted, strict=True):
        ds = d * nearest(steps / top_scale * scale if top_scale else F(0), 0, int(steps))
        dm = dmin * nearest(steps / top_minimum * minimum if top_minimum else F(0), 0, int(steps))
        kept = [nearest((value + dm) / ds, 0, largest) for value in group] if ds else quants
        values += [ds * q - dm for q in kept]
        integers += kept
    return np.array(values), np.array(integers)


def fit_in_turn(x: Row) -> tuple[np.float32, list[np.float32]]:
    """make_q3_quants with do_rmse: the scale and integers (from -4 to 3) of one group of 16."""
    extreme = x[np.abs(x).argmax()]
    if abs(extreme) < F(1e-15):
        return F(0), [F(-4)] * 16
    w = [value * value for value in x]
    quants = [nearest(F(-4) / extreme * value, -4, 3) for value in x]
    sxl, sl2 = F(0), F(0)
    for weight, q, value in zip(w, quants, x, strict=True):
        sxl, sl2 = sxl + weight * value * q, sl2 + weight * q * q
    for _ in range(5):
        before = list(quants)
        for i, (weight, value) in enumerate(zip(w, x, strict=True)):
            rest_xl, rest_l2 = sxl - weight * value * quants[i], sl2 - weight * quants[i] * quants[i]
            if rest_xl <= 0:
                continue
            q = nearest(value * rest_l2 / rest_xl, -4, 3)
            if q == quants[i]:
                continue
            new_xl, new_l2 = rest_xl + weight * value * q, rest_l2 + weight * q * q
            if new_l2 > 0 and new_xl * new_xl * sl2 > sxl * sxl * new_l2:
                quants[i], sxl, sl2 = q, new_xl, new_l2
        if quants == before:
            break
    return (sxl / sl2 if sl2 > 0 else F(0)), quants


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


def around_zero(x: Row, largest: int, least_scale: int) -> tuple[Row, Row]:
    """quantize_row_q3_K_ref or q6_K of one block of 256: its values and its integers.

    The largest scale becomes `least_scale`.
    """
    fitted = [(fit_in_turn if largest == 4 else fit_symmetric)(group) for group in x.reshape(16, 16)]
    top = max((scale for scale, _ in fitted), key=abs)
    d = F(np.float16(F(1) / (F(least_scale) / top))) if abs(top) >= F(1e-15) else F(0)
    values, integers = [], []
    for group, (scale, quants) in zip(x.reshape(16, 16), fitted, strict=True):
        ds = d * nearest(F(least_scale) / top * scale, least_scale, -least_scale - 1) if d else F(0)
        kept = [nearest(value / ds, -largest, largest - 1) for value in group] if ds else quants
        values += [ds * q for q in kept]
        integers += kept
    return np.array(values), np.array(integers)


BY_HAND: Mapping[str, Callable[[Row], tuple[Row, Row]]] = {
    "Q2_K": lambda x: with_minimum(x, 16, 4, 3, -0.5, 15),
    "Q3_K": lambda x: around_zero(x, 4, -32),
    "Q4_K": lambda x: with_minimum(x, 32, 6, 15, -1.0, 20),
    "Q5_K": lambda x: with_minimum(x, 32, 6, 31, -0.5, 15),
    "Q6_K": lambda x: around_zero(x, 32, -128),
}


@pytest.mark.drawn(12)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BY_HAND)
def test_the_search_is_ggmls(name: str, shape: str) -> None:
    """Bit for bit: values, and the integers, also of groups whose scale is rounded to zero."""
    format_ = FORMATS[name]
    rng = np.random.default_rng(8)
    x = np.array([0.02 * SHAPES[shape](rng) for _ in range(6)]).astype(np.float32)
    blocks = format_.quantize(x)
    with np.errstate(all="ignore"):
        expected = [BY_HAND[name](row) for row in x]
    np.testing.assert_array_equal(format_.dequantize(blocks), np.array([values for values, _ in expected]))
    integers = np.array([found for _, found in expected])
    if name == "Q4_K":
        np.testing.assert_array_equal(nibbles(np.ascontiguousarray(blocks[:, 16:]), 32).reshape(-1, 256), integers)
    if name == "Q2_K":
        np.testing.assert_array_equal(fields(blocks[:, 16:80], 32, (0, 2, 4, 6), 2).reshape(-1, 256), integers)


def check_build(isa: str, function: str, groups: NDArray[np.float32], *arguments: object, **options: bool) -> None:
    """That this function of the extension has the bits of that of k_fit."""
    with np.errstate(all="ignore"):
        expected = getattr(k_fit, function)(groups, *arguments, **options)
    got = [np.empty_like(part) for part in expected]
    getattr(native(), function)(isa, groups, *arguments, *options.values(), *got)
    for found, part in zip(got, expected, strict=True):
        np.testing.assert_array_equal(found, part)


@st.composite
def groups_of_32(draw: st.DrawFn, deviations: Sequence[float]) -> NDArray[np.float32]:
    """Up to 70 of any shape and one of the deviations, one after the other."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape, deviation = draw(st.sampled_from(list(SHAPES))), draw(st.sampled_from(deviations))
    values = np.concatenate([SHAPES[shape](rng) for _ in range(9)])[: 32 * draw(st.integers(1, 70))]
    return values.astype(np.float32) * F(deviation)


@pytest.mark.parametrize("isa", [] if unavailable_reason() else supported_isas())
@settings(max_examples=40)
@given(x=groups_of_32([1e-12, 1e-3, 1.0, 1e9]))
def test_every_build_has_the_bits_of_numpy(isa: str, x: NDArray[np.float32]) -> None:
    for largest, first, num_steps in ((15, -1.0, 20), (31, -0.5, 15)):
        check_build(isa, "fit_with_minimum", x.reshape(-1, 32), largest, first, 0.1, num_steps, absolute=False)
    groups = x.reshape(-1, 16)
    check_build(isa, "fit_with_minimum", groups, 3, -0.5, 0.1, 15, absolute=True)
    check_build(isa, "fit_symmetric", groups, 32)
    check_build(isa, "fit_in_turn", groups, 4)


@given(x=arrays.arrays(np.float32, (5, 16), elements=st.floats(-60000, 60000, width=32)))
def test_a_search_in_turn_never_ends_worse_than_it_begins(x: NDArray[np.float32]) -> None:
    """By the squared errors that it lowers, each weighing as its value's square; in float64."""
    x[np.abs(x).max(axis=1) < 1e-3] = 0
    with np.errstate(all="ignore"):
        found = k_fit.fit_in_turn(x, 4)
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)
    with np.errstate(all="ignore"):
        first = np.where(extreme == 0, 0, np.clip(np.rint(x * (F(-4) / extreme)), -4, 3)).astype(np.float64)
    wide = x.astype(np.float64)
    weights = wide**2
    products, squares = (weights * wide * first).sum(axis=1), (weights * first**2).sum(axis=1)
    scale = np.divide(products, squares, out=np.zeros(5), where=squares > 0)

    def error(scale: NDArray[np.floating], integers: NDArray[np.floating]) -> NDArray[np.floating]:
        return (weights * (wide - scale * integers) ** 2).sum(axis=1)

    whole = (weights * wide**2).sum(axis=1)
    assert (error(found.scale.astype(np.float64), found.integers) <= error(scale[:, None], first) + 1e-4 * whole).all()


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    if unavailable_reason():
        pytest.skip(str(unavailable_reason()))
    values, one = np.zeros((3, 16), np.float32), np.zeros((3, 1), np.float32)
    for scales, integers in ((one[:2], np.zeros((3, 16), np.int8)), (one, np.zeros((3, 15), np.int8))):
        for search, largest in ((native().fit_symmetric, 32), (native().fit_in_turn, 4)):
            with pytest.raises(ValueError, match="do not fit together"):
                search("generic", values, largest, scales, integers)
        for absolute in (False, True):
            with pytest.raises(ValueError, match="do not fit together"):
                native().fit_with_minimum("generic", values, 3, -0.5, 0.1, 15, absolute, scales, one, integers)
    with pytest.raises(ValueError, match="do not fit together"):  # 16 values where groups have 32
        native().fit_with_minimum("generic", values, 15, -1.0, 0.1, 20, False, one, one, np.zeros((3, 16), np.int8))


@pytest.mark.parametrize(
    ("name", "most"), [("Q2_K", 0.3), ("Q3_K", 0.155), ("Q4_K", 0.075), ("Q5_K", 0.038), ("Q6_K", 0.0186)]
)
def test_error_on_what_weights_look_like(name: str, most: float) -> None:
    """Of normal values, relative: below what as many bits with one scale for 32 values reach (Q4_0 has 0.086)."""
    format_ = FORMATS[name]
    x = np.random.default_rng(9).standard_normal((400, 256)).astype(np.float32)
    error = format_.dequantize(format_.quantize(x)) - x
    assert np.sqrt((error**2).mean() / (x**2).mean()) < most
