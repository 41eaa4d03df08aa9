"""Lengths keep to their bounds and to the distribution that they state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.bench.load.lengths import Lengths
from karat.errors import UsageError
from tests.support.seed import SEED


def draws(text: str, number: int = 4000) -> np.ndarray:
    rng = np.random.default_rng(int(SEED))
    lengths = Lengths.parse(text, "--tokens")
    return np.array([lengths.draw(rng) for _ in range(number)])


def test_means_and_deviations_are_those_stated() -> None:
    """Of 4,000 draws a mean deviates by a sixtieth of the deviation; five times that is allowed."""
    assert set(draws("7", 10)) == {7}
    uniform = draws("uniform:10:20")
    assert set(uniform) == set(range(10, 21)) and abs(uniform.mean() - 15) < 5 * np.sqrt(10) / 60
    normal = draws("normal:100:10:20:180")
    assert abs(normal.mean() - 100) < 5 * 10 / 60 and abs(normal.std() - 10) < 1
    lognormal = draws("lognormal:100:0.5:1:100000")
    assert abs(np.log(lognormal).mean() - np.log(100)) < 5 * 0.5 / 60 + 0.01


@given(low=st.integers(1, 50), width=st.integers(0, 50), where=st.floats(0, 1), spread=st.floats(0, 30))
def test_bounds_hold(low: int, width: int, where: float, spread: float) -> None:
    centre = low + where * width
    for text in (f"uniform:{low}:{low + width}", f"normal:{centre}:{spread}:{low}:{low + width}"):
        lengths = Lengths.parse(text, "--tokens")
        rng = np.random.default_rng(0)
        assert all(low <= lengths.draw(rng) <= low + width for _ in range(5))
        assert Lengths.parse(str(lengths), "--tokens").kind == lengths.kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "x",
        "1.5",
        "uniform:1",
        "uniform:5:4",
        "uniform:0:4",
        "normal:5:1",
        "normal:50:1:1:9",
        "poisson:4",
        "normal:5:-1:1:9",
        "normal:nan:1:1:9",
        "normal:5:inf:1:9",
        "uniform:1:99999999999",
        "lognormal:5:1:1:9:9",
    ],
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--tokens.*expected N, uniform"):
        Lengths.parse(text, "--tokens")
