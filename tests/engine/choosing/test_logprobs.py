"""Log-probabilities against plain Python, ranks against a sorted list."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.engine.choosing.logprobs import token_logprobs
from karat.outputs import Logprob

LOGITS = st.lists(st.sampled_from([-50.0, -4.0, 0.0, 0.25, 9.0, 9.5]), min_size=1, max_size=20)


@given(LOGITS, st.data(), st.integers(0, 64))
@settings(deadline=None)
def test_logprobs_and_ranks(logits: list[float], data: st.DataObject, num_top: int) -> None:
    token_id = data.draw(st.integers(0, len(logits) - 1))
    result = token_logprobs(np.array(logits, np.float32), token_id, num_top, lambda i: f"<{i}>")
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    assert list(result) == [token_id, *(i for i in order[:num_top] if i != token_id)]
    total = math.fsum(math.exp(x) for x in logits)
    for i, value in result.items():
        assert value.rank == order.index(i) + 1
        assert value.logprob == pytest.approx(logits[i] - math.log(total), abs=1e-12)
        assert value.decoded_token == f"<{i}>"


def test_of_large_and_far_apart_logits() -> None:
    assert logprobs_of(np.array([3e38, -3e38], np.float32)) == [0, -2 * float(np.float32(3e38))]
    assert logprobs_of(np.array([1000.0, 1000.0])) == pytest.approx([-math.log(2)] * 2, abs=1e-15)


def test_float32_logits_are_not_rounded_again() -> None:
    logits = np.random.default_rng(0).standard_normal(5000).astype(np.float32) * 5
    exact = logprobs_of(logits.astype(np.float64))
    assert logprobs_of(logits) == exact
    assert math.fsum(np.exp(exact)) == pytest.approx(1, abs=1e-12)


def logprobs_of(logits: NDArray[np.floating]) -> list[float]:
    reported = token_logprobs(logits, 0, len(logits), str)
    return [reported[token_id].logprob for token_id in range(len(logits))]


def test_values_are_plain_python() -> None:
    ((token_id, value),) = token_logprobs(np.zeros(3, np.float32), 2, 0, str).items()
    assert type(token_id) is int and type(value.rank) is int and type(value.logprob) is float
    assert value == Logprob(logprob=-math.log(3), rank=3, decoded_token="2")
