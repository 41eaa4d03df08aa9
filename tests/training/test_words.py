"""Stems, inflections and reserved words."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from training import requests
from training.words import Lexicon, article, build_lexicon, contains, inflections, is_reserved, plural, stem

WORDS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=3, max_size=12)
RESERVED = json.loads((Path(__file__).parents[1] / "data" / "reserved_words.json").read_text())


@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("fox", "foxes"),
        ("lantern", "lanterns"),
        ("berry", "berries"),
        ("mouse", "mice"),
        ("wolf", "wolves"),
        ("key", "keys"),
    ],
)
def test_a_plural_has_the_stem_of_its_noun(one: str, many: str) -> None:
    assert plural(one) == many
    assert stem(one) == stem(many)
    assert is_reserved(one) == is_reserved(many)


@given(WORDS)
def test_reservation_does_not_depend_on_case(word: str) -> None:
    assert is_reserved(word) == is_reserved(word.capitalize()) == is_reserved(word.upper())


@given(WORDS)
def test_a_word_is_one_of_its_inflections(word: str) -> None:
    assert {word, plural(word)} <= inflections(word)


@given(WORDS, WORDS)
@example("there", "fox")  # words of the sentences around it
def test_contains_wants_a_whole_word(word: str, other: str) -> None:
    assert contains(f"There was a {word}.", word)
    assert contains(f"“{word.capitalize()}’s!”", word)
    assert not contains(f"qq{word}, {word}qqq.", word)
    assert contains(f"A {other}.", word) == (other in inflections(word) or "a" in inflections(word))


def test_contains_accepts_inflections_only() -> None:
    assert contains("Two foxes ran.", "fox")
    assert contains("The mice slept.", "mouse")
    assert not contains("The foxglove grew.", "fox")
    assert not contains("", "fox")


@pytest.mark.parametrize(
    ("word", "expected"), [("fox", "a"), ("owl", "an"), ("unicorn", "a"), ("hour", "an"), ("uncle", "an")]
)
def test_article(word: str, expected: str) -> None:
    assert article(word) == expected


def test_nouns_are_told_from_verbs_and_names(lexicon: Lexicon) -> None:
    assert {"dog", "ball", "tree", "box"} <= lexicon.counts.keys()
    assert not {"went", "happy", "quickly", "play", "the", "lily"} & lexicon.counts.keys()
    assert "Lily" in lexicon.names
    assert "bird" in lexicon.animate
    assert "box" not in lexicon.animate


def test_a_lexicon_of_nothing_is_empty() -> None:
    assert build_lexicon([]).counts == {}


def test_the_list_of_reserved_words_is_reserved_and_in_no_request_template() -> None:
    assert set(RESERVED) == {"common", "medium", "rare"}
    words = [word for band in RESERVED.values() for word in band]
    assert len(words) == len(set(words))
    assert all(len(band) >= 150 for band in RESERVED.values())
    assert all(is_reserved(word) for word in words)
    templates = requests.ABOUT + requests.WITH_WORDS + requests.OLD_TALES + requests.ANY_STORY + requests.SYSTEM
    used = {word for template in templates for word in re.findall(r"[a-z]+", template.lower())}
    assert not used & {form for word in words for form in inflections(word)}
