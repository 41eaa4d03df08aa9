"""A small random model for the tests of LLM, made once."""

from pathlib import Path

import pytest

from karat import LLM
from tests.engine.tiny import write_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def llm(folder: Path) -> LLM:
    return LLM(folder, dtype="float64")
