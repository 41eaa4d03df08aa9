"""What is kept fits its budget, and is what was made."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from karat.check.model.byte_lru import ByteLRU


@given(st.integers(0, 400), st.lists(st.integers(0, 9), max_size=60))
def test_values_are_right_and_fit_the_budget(budget: int, keys: list[int]) -> None:
    """Beside a list of all that was asked for, least recent first."""
    kept: ByteLRU[int, np.ndarray] = ByteLRU(budget)
    made: list[int] = []
    model: list[int] = []

    def make(key: int) -> np.ndarray:
        made.append(key)
        return np.full(key * 10, key, np.uint8)

    for key in keys:
        expected = key not in model
        model = [*[k for k in model if k != key], key]
        while sum(10 * k for k in model) > budget and len(model) > 1:
            model.pop(0)
        made.clear()
        value = kept.get(key, lambda key=key: make(key))
        assert bool(made) is expected and value.nbytes == 10 * key and (value == key).all()
