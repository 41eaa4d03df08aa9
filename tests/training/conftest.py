"""The training texts, where they are present: KARAT_TEST_DATA or ../shared/data beside the repository."""

import os
from pathlib import Path

import pytest

from training.data import Document, load_documents, split
from training.words import Lexicon, build_lexicon

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def corpus_folder() -> Path:
    data = Path(os.environ.get("KARAT_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not (data / "corpus" / "tinystories.txt").is_file():
        pytest.skip("no training texts: set KARAT_TEST_DATA to a folder with corpus/tinystories.txt")
    return data / "corpus"


@pytest.fixture(scope="session")
def documents(corpus_folder: Path) -> tuple[list[Document], list[Document]]:
    return split(load_documents(corpus_folder))


@pytest.fixture(scope="session")
def stories(documents: tuple[list[Document], list[Document]]) -> list[str]:
    return [document.text for document in documents[0] if document.source == "tinystories"]


@pytest.fixture(scope="session")
def lexicon(stories: list[str]) -> Lexicon:
    return build_lexicon(stories)
