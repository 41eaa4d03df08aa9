"""Receipts of tests/data that other builds and machines made are confirmed by this one, and made again."""

from pathlib import Path

import pytest

from karat.receipts import read_receipt, read_receipts
from tools.golden_receipts import FOLDER, NAMES, made, opened

AGAIN = "if a numeric contract changed that: python -m tools.golden_receipts"


@pytest.mark.parametrize("name", NAMES)
def test_golden_receipts_hold(name: str, tmp_path: Path) -> None:
    receipts = read_receipts(FOLDER / f"{name}.jsonl")
    assert len(receipts) == 8
    with opened(name, tmp_path) as llm:
        assert {receipt.fingerprint.numeric_contract for receipt in receipts} == {llm.numeric_contract}, AGAIN
        assert [llm.verify(receipt).kind for receipt in receipts] == ["identical"] * 8
        again = list(made(llm))
    assert [read_receipt(text).output for text in again] == [receipt.output for receipt in receipts]
