"""The fused multiply-add of definitions rounds once, as fractions say."""

from fractions import Fraction

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from karat.ops.fma import fma
from tests.support.drawn import examples
from tests.support.exact import nearest_float32
from tests.support.fma import fma as emulated

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
TINY = 2.0**-149


@settings(max_examples=examples(500))
@given(a=FLOATS, b=FLOATS, c=FLOATS)
@example(1 + 2.0**-23, 1 + 2.0**-23, 2.0**-24 + 2.0**-47)
@example(2.0**23 + 1, 1.5, 2.0**-30)  # halfway, and a little: two roundings would go to even
@example(2.0**23 + 1, 1.5, -(2.0**-30))
@example(-(2.0**23) - 1, 1.5, 2.0**-100)
@example(2.0**-75, 2.0**-75, TINY)  # half of the smallest number, added to it
@example(2.0**-75, 2.0**-74, 0.0)
@example(3 * 2.0**-76, 2.0**-75, TINY)
@example(2.0**-75, 2.0**-75, 0.0)
@example(2.0**100, 2.0**28, -(2.0**103))  # just below infinity
@example(2.0**127, 2.0, -(2.0**103))  # halfway to infinity
def test_one_rounding(a: float, b: float, c: float) -> None:
    got = fma(*(np.array([value], np.float32) for value in (a, b, c)))[0]
    assert got == nearest_float32(Fraction(a) * Fraction(b) + Fraction(c))


@given(
    seed=st.integers(0, 2**32 - 1),
    shift=st.integers(-40, 40),
    scale=st.sampled_from([-140, -126, -100, 0, 60]),
)
def test_sums_near_halves(seed: int, shift: int, scale: int) -> None:
    """Integers whose products end near halves of float32, in normal and subnormal results."""
    rng = np.random.default_rng(seed)
    a = np.ldexp(rng.integers(2**23, 2**24, 200).astype(np.float32), -23)
    b = np.ldexp(rng.integers(1, 2**10, 200).astype(np.float32) + np.float32(0.5), scale)
    c = np.ldexp(rng.integers(-3, 4, 200).astype(np.float32), scale + shift - 24)
    c = np.where(np.isfinite(c), c, np.float32(0)).astype(np.float32)
    got = fma(a, b, c)
    want = [
        nearest_float32(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    np.testing.assert_array_equal(got, np.array(want))


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_bits_as_rounding_to_odd_everywhere_gives_them(seed: int) -> None:
    """NaN and infinity too, and arrays that broadcast."""
    bits = np.random.default_rng(seed).integers(0, 2**32, (3, 40, 50), np.uint32)
    a, b, c = bits.view(np.float32)
    np.testing.assert_array_equal(fma(a, b, c), emulated(a, b, c))
    np.testing.assert_array_equal(fma(a[:, :1], b, c), emulated(np.broadcast_to(a[:, :1], b.shape), b, c))
