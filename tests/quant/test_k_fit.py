"""The K formats' quantisers, by ggml's search written out value by value."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.quant import FORMATS

F = np.float32
Row = NDArray[np.float32]


def nearest(value: np.floating, low: int, high: int) -> int:
    return int(min(max(np.rint(value), low), high))


def all_nearest(values: Row, low: int, high: int) -> NDArray[np.float64]:
    return np.clip(np.rint(values), low, high).astype(np.float64)


def fit_group(x: Row, largest: int, first: float, num_steps: int) -> tuple[float, float]:
    """make_qkx2_quants with squared differences and steps of 0.1: scale and minimum of one group of 32."""
    w = np.sqrt(F((x * x).sum() / 32)) + np.abs(x)
    low, high = min(x.min(), F(0)), x.max()
    if low == high:
        return 0.0, float(-low)

    def tried(inverse: np.floating) -> NDArray[np.float64]:
        return all_nearest(inverse * (x - low), 0, largest)

    def error(scale: float, minimum: float, quants: NDArray[np.float64]) -> float:
        return float((w * (scale * quants + minimum - x.astype(np.float64)) ** 2).sum())

    scale, minimum = float((high - low) / largest), float(low)
    best = error(scale, minimum, tried(F(largest) / (high - low)))
    for number in range(num_steps + 1):
        q = tried(F(first + 0.1 * number + largest) / (high - low))
        sw, sl, sl2 = float(w.sum()), float((w * q).sum()), float((w * q * q).sum())
        sx, sxl = float((w * x).sum()), float((w * q * x).sum())
        determinant = sw * sl2 - sl * sl
        if determinant > 0:
            own_scale, own_minimum = (sw * sxl - sx * sl) / determinant, (sl2 * sx - sl * sxl) / determinant
            if own_minimum > 0:
                own_scale, own_minimum = sxl / sl2, 0.0
            if (found := error(own_scale, own_minimum, q)) < best:
                scale, minimum, best = own_scale, own_minimum, found
    return scale, -minimum


def with_minimum(x: Row, largest: int, first: float, num_steps: int) -> Row:
    """quantize_row_q4_K_ref and quantize_row_q5_K_ref, and back: one block of 256."""
    fitted = [fit_group(group, largest, first, num_steps) for group in x.reshape(8, 32)]
    top_scale, top_minimum = (max(0.0, *part) for part in zip(*fitted, strict=True))
    d, dmin = F(np.float16(top_scale / 63)), F(np.float16(top_minimum / 63))
    result = []
    for group, (scale, minimum) in zip(x.reshape(8, 32), fitted, strict=True):
        ds = d * nearest(F(63 / top_scale * scale) if top_scale else F(0), 0, 63)
        dm = dmin * nearest(F(63 / top_minimum * minimum) if top_minimum else F(0), 0, 63)
        quants = all_nearest((group + dm) / ds, 0, largest) if ds else np.zeros(32)
        result.append(ds * quants.astype(np.float32) - dm)
    return np.concatenate(result)


def fit_symmetric(x: Row) -> float:
    """make_qx_quants with squared weights: the scale of one group of 16, for integers from -32 to 31."""
    extreme = x[np.abs(x).argmax()]
    if abs(extreme) < 1e-15:
        return 0.0
    scale = best = 0.0
    for number in (0, *range(-9, 0), *range(1, 10)):
        q = all_nearest(F(-(32 + 0.1 * number)) / extreme * x, -32, 31)
        sxl, sl2 = float((x * x * x * q).sum()), float((x * x * q * q).sum())
        if sl2 > 0 and (number == 0 or sxl * sxl > best * sl2):
            scale, best = sxl / sl2, sxl * sxl / sl2
    return scale


def symmetric(x: Row) -> Row:
    """quantize_row_q6_K_ref, and back: one block of 256."""
    fitted = [fit_symmetric(group) for group in x.reshape(16, 16)]
    largest = max(fitted, key=abs)
    d = F(np.float16(largest / -128))
    result = []
    for group, scale in zip(x.reshape(16, 16), fitted, strict=True):
        ds = d * min(127, int(np.rint(-128 / largest * scale)))
        result.append(ds * (all_nearest(group / ds, -32, 31) if ds else np.zeros(16)).astype(np.float32))
    return np.concatenate(result)


SHAPES: dict[str, Callable[[np.random.Generator], NDArray[np.float64]]] = {
    "normal": lambda rng: rng.standard_normal(256),
    "heavy tails": lambda rng: rng.standard_t(3, 256),
    "groups of very different sizes": lambda rng: rng.standard_normal(256) * np.repeat(10.0 ** -np.arange(8), 32),
    "positive": lambda rng: np.abs(rng.standard_normal(256)),
    "negative": lambda rng: -np.abs(rng.standard_normal(256)),
    "few values": lambda rng: rng.integers(-2, 3, 256) * 0.5,
    "outliers": lambda rng: np.where(rng.random(256) < 0.02, 5.0, 0.01 * rng.standard_normal(256)),
    "one value": lambda rng: np.full(256, rng.standard_normal()),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
def test_error_is_at_most_that_of_ggmls_search(name: str, shape: str) -> None:
    """Within 2 % on 30 blocks: what differs is the order of sums, and so the choice between near equals."""
    format_ = FORMATS[name]
    rng = np.random.default_rng(8)
    x = np.array([0.02 * SHAPES[shape](rng) for _ in range(30)]).astype(np.float32)
    match name:
        case "Q4_K":
            expected = [with_minimum(row, 15, -1.0, 20) for row in x]
        case "Q5_K":
            expected = [with_minimum(row, 31, -0.5, 15) for row in x]
        case _:
            expected = [symmetric(row) for row in x]
    got = format_.dequantize(format_.quantize(x))
    errors = [float(((np.array(other, np.float64) - x) ** 2).sum()) for other in (got, expected)]
    assert errors[0] <= 1.02 * errors[1] + 1e-14


@pytest.mark.parametrize(("name", "most"), [("Q4_K", 0.075), ("Q5_K", 0.038), ("Q6_K", 0.0186)])
def test_error_on_what_weights_look_like(name: str, most: float) -> None:
    """Of normal values, relative: below what 4, 5 and 6 bits with one scale for 32 values reach (Q4_0 has 0.086)."""
    format_ = FORMATS[name]
    x = np.random.default_rng(9).standard_normal((400, 256)).astype(np.float32)
    error = format_.dequantize(format_.quantize(x)) - x
    assert np.sqrt((error**2).mean() / (x**2).mean()) < most
