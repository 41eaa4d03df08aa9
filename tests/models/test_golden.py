"""The logits of fixed models have the bits that they had when tests/data/golden_logits.json was made."""

import json
from pathlib import Path

import pytest

from tests.support import golden

pytest.importorskip("karat._native", reason="the kernels are not built")
DIGESTS = json.loads((Path(__file__).parents[1] / "data" / "golden_logits.json").read_text())


def test_every_case_has_a_digest() -> None:
    assert set(DIGESTS) == {"embedded"} | {f"{family} {stored}" for family, stored in golden.cases()}
    assert len(set(DIGESTS.values())) == len(DIGESTS), "two cases have the same logits"


@pytest.mark.parametrize(("family", "stored"), list(golden.cases()))
def test_random_models(family: str, stored: str) -> None:
    """Two threads, where the digest was made with one."""
    assert golden.digest_of(family, stored, threads=2) == DIGESTS[f"{family} {stored}"]


def test_embedded_model() -> None:
    assert golden.embedded_digest() == DIGESTS["embedded"]
