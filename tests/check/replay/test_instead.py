"""What a trace has in the place of what is right is said where it is something simple, and else nothing."""

import numpy as np
import pytest

from karat.check.model.rounding import rounded
from karat.check.replay.instead import Places, instead

ROWS, HEADS, COLUMNS = 6, 4, 16
RIGHT = np.random.default_rng(1).standard_normal((ROWS, HEADS, COLUMNS))
PLACES = Places(np.arange(10, 10 + ROWS), np.arange(ROWS), 2.0**-24, has_keys=False)
ALL = np.ones(RIGHT.shape, bool)


def _said(got: np.ndarray, wrong: np.ndarray = ALL) -> str:
    return instead(got, RIGHT, wrong, PLACES)


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (np.zeros_like(RIGHT), "zeros"),
        (np.full_like(RIGHT, np.nan), "NaN"),
        (RIGHT * 0.5, "the right values × 0.5"),
        (RIGHT[:, [1, 0, 3, 2]], "the right values of heads 1, 0, 3, 2"),
        (np.roll(RIGHT, 8, axis=2), "of 2 equal parts of the columns, the right values of parts 1, 0"),
        (np.roll(RIGHT, 1, axis=0), "the right values of tokens 15, 10, 11, 12, 13, 14"),
        (rounded(RIGHT, "bfloat16"), "numbers of bfloat16"),
        (rounded(RIGHT, "float16"), "numbers of float16"),
        (RIGHT + np.random.default_rng(2).standard_normal(RIGHT.shape), ""),
        (RIGHT * (1 + 1e-4), ""),
    ],
)
def test_words(got: np.ndarray, words: str) -> None:
    assert _said(got) == words


def test_only_what_is_wrong_counts() -> None:
    wrong = np.zeros(RIGHT.shape, bool)
    wrong[1:] = True
    got = RIGHT.copy()
    got[1:] = RIGHT[:-1]
    assert _said(got, wrong) == "the right values of the token 1 position before"
    wrong[:] = False
    wrong[:, 2] = True
    got = RIGHT.copy()
    got[:, 2] = RIGHT[:, 0]
    assert _said(got, wrong) == "the right values of head 0"


def test_masks() -> None:
    places = Places(PLACES.tokens, PLACES.positions, PLACES.unit, has_keys=True)
    masked = np.full_like(RIGHT, -np.inf)
    assert instead(masked, RIGHT, ALL, places) == "masked keys that should be visible"
    assert instead(RIGHT, masked, ALL, places) == "visible keys that should be masked"
