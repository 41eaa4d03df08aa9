"""Every mistake computes what it computed when tests/data/mistake_checksums.json was made.

Covers: karat.check.mistakes.attention, karat.check.mistakes.block, karat.check.mistakes.embedding,
karat.check.mistakes.enumerate, karat.check.mistakes.linear, karat.check.mistakes.loading, karat.check.mistakes.norm,
karat.check.mistakes.recurrence, karat.check.mistakes.result, karat.check.mistakes.rope, karat.check.mistakes.scope,
karat.check.mistakes.weight_readings, karat.check.model.evaluate, karat.check.model.context, karat.check.model.rounding.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support import mistakes

CHECKSUMS = json.loads((Path(__file__).parents[2] / "data" / "mistake_checksums.json").read_text())


def test_every_case_has_checksums() -> None:
    assert set(CHECKSUMS) == {*mistakes.CASES, *mistakes.formats()}


@pytest.mark.parametrize("case", mistakes.CASES)
def test_mistakes_of_arithmetic(case: str) -> None:
    _check(case, mistakes.values_of(case, num_pairs=mistakes.NUM_PAIRS))


@pytest.mark.parametrize("stored", mistakes.formats())
def test_misreadings_of_blocks(stored: str) -> None:
    _check(stored, mistakes.values_of_format(stored))


def _check(case: str, values: Iterator[tuple[str, np.ndarray]]) -> None:
    found = mistakes.checksums(values)
    assert found.keys() == CHECKSUMS[case].keys()
    for bug, (total, num_nan, num_infinite) in found.items():
        expected = CHECKSUMS[case][bug]
        assert [num_nan, num_infinite] == expected[1:], bug
        assert total == pytest.approx(expected[0], rel=1e-7, abs=1e-7), bug
