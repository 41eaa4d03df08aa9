"""Rows of logits: the extension and NumPy give the same bits, and those are right."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.ops import rows
from karat.ops.native import unavailable_reason
from tests.support.drawn import examples

with_extension = pytest.mark.skipif(unavailable_reason() is not None, reason="there is no extension to compare with")

FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -2.5, 80.0, -1e30, 3e38, 1e-45]),  # few, so that ties are common
    st.floats(-100, 100, width=32),
)
ROWS = st.one_of(
    st.lists(FLOATS, min_size=1, max_size=70),
    st.tuples(st.integers(0, 2**32), st.integers(1, 9000), st.integers(1, 40)).map(
        lambda t: np.random.default_rng(t[0]).integers(-t[2], t[2], t[1]).tolist()
    ),
).map(lambda values: np.array(values, np.float32))


@pytest.fixture
def numpy_alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(rows, "_native", None)
    return monkeypatch


def without_extension(function: str, *args: object) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_native", None)
        return getattr(rows, function)(*args)


@with_extension
@given(row=ROWS, data=st.data())
@settings(max_examples=examples(300))
def test_both_give_the_same_bits(row: NDArray[np.float32], data: st.DataObject) -> None:
    num = data.draw(st.integers(1, len(row)))
    temperature = data.draw(st.sampled_from([1.0, 0.6, 1e-300, 1e4, 3.0]))
    for kind in (np.float32, np.float64):
        values = row.astype(kind)
        assert rows.argmax(values) == without_extension("argmax", values)
        np.testing.assert_array_equal(rows.largest(values, num), without_extension("largest", values, num))
        weights = rows.exp_weights(values, temperature)
        np.testing.assert_array_equal(weights, without_extension("exp_weights", values, temperature))
    assert rows.log_sum_exp(row) == without_extension("log_sum_exp", row)
    assert rows.finite_argmax(row) == without_extension("finite_argmax", row) == rows.argmax(row)


@given(row=ROWS, data=st.data())
def test_the_largest_are_those_of_a_stable_sort(row: NDArray[np.float32], data: st.DataObject) -> None:
    num = data.draw(st.integers(1, len(row)))
    expected = sorted(sorted(range(len(row)), key=lambda i: -row[i])[:num])
    assert rows.largest(row, num).tolist() == expected
    assert rows.argmax(row) == sorted(range(len(row)), key=lambda i: -row[i])[0]


@given(row=st.lists(st.floats(-700, 700, width=32), min_size=1, max_size=300).map(lambda x: np.array(x, np.float32)))
def test_log_sum_exp(row: NDArray[np.float32]) -> None:
    """Each term is within an ulp, and there are at most 300 / 8 + 3 additions in a row: 44 * 2^-53 of the sum."""
    top = float(row.max())
    exact = top + math.log(math.fsum(math.exp(float(x) - top) for x in row))
    assert sum(rows.log_sum_exp(row)) == pytest.approx(exact, rel=1e-15, abs=1e-14)


@given(st.lists(st.floats(-750, 0), min_size=1, max_size=50).map(np.array))
def test_exp_is_within_an_ulp(x: NDArray[np.float64]) -> None:
    for value, got in zip(x.tolist(), rows.exp(x).tolist(), strict=True):
        assert abs(got - math.exp(value)) <= math.ulp(math.exp(value))
    assert rows.exp(np.array([0.0, -800.0, -np.inf])).tolist() == [1, 0, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 40])
def test_what_is_not_finite_is_seen(bad: float, at: int, numpy_alone: pytest.MonkeyPatch) -> None:
    row = np.zeros(41, np.float32)
    row[at] = bad
    assert rows.finite_argmax(row) is None
    numpy_alone.undo()
    assert rows.finite_argmax(row) is None


def test_a_bad_number_of_values_is_an_error() -> None:
    for num in (0, 4):
        with pytest.raises(AssertionError, match=f"{num} of 3 values"):
            rows.largest(np.zeros(3, np.float32), num)
