"""Fixtures that all tests share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real models, tokenizers, templates and text: $KARAT_TEST_DATA, or ../shared/data beside the checkout."""
    folder = Path(os.environ.get("KARAT_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no test data in {folder} (set KARAT_TEST_DATA)")
    return folder
