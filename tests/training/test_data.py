"""Documents, the held-out split, passages."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data import NUM_HELD_OUT, Document, load_documents, overlaps, passages_of, shingles, split, unwrap


def test_the_split_is_the_documented_one_and_disjoint(corpus_folder: Path) -> None:
    documents = load_documents(corpus_folder)
    training, held_out = split(documents)
    random.seed(0)
    indices = list(range(len(documents)))
    random.shuffle(indices)
    assert held_out == [documents[i] for i in indices[:NUM_HELD_OUT]]
    assert not {d.text for d in training} & {d.text for d in held_out}
    assert len(training) >= 0.95 * (len(documents) - NUM_HELD_OUT)


def test_no_training_story_repeats_a_held_out_one(documents: tuple[list[Document], list[Document]]) -> None:
    training, held_out = documents
    seen = {shingle for document in held_out for shingle in shingles(document.text)}
    assert not [document.text[:60] for document in training if overlaps(document.text, seen)]


def test_a_missing_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tinystories\.txt not found: --corpus must name the folder"):
        load_documents(tmp_path)


@given(st.lists(st.text('aB .!"', max_size=80), max_size=12), st.integers(1, 20))
def test_passages_lose_no_text(paragraphs: list[str], max_words: int) -> None:
    assert " ".join(passages_of(paragraphs, max_words)).split() == " ".join(paragraphs).split()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(10, 40))
def test_passages_of_short_sentences_keep_the_limit(lengths: list[int], max_words: int) -> None:
    paragraphs = [" ".join(["One two three."] * length) for length in lengths]
    passages = passages_of(paragraphs, max_words)
    assert all(len(passage.split()) <= max_words for passage in passages)
    assert len(passages) <= 2 * (sum(map(len, map(str.split, paragraphs))) // (max_words - 2) + 1)


def test_unwrap_joins_broken_lines_only() -> None:
    assert (
        unwrap("They were great\nfriends. One\nday\nthey left.\nThe end.")
        == "They were great friends. One day they left.\nThe end."
    )
