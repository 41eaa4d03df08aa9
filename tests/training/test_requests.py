"""Requests: their words are in the story, reserved words are never asked for, and the format is the template's."""

import random
import re

import pytest

from training.requests import ABOUT, ANY_STORY, WITH_WORDS, RequestMaker, Turn, chatml
from training.words import Lexicon, is_reserved, plural

TEMPLATES = ABOUT + WITH_WORDS + ANY_STORY
TEMPLATE_WORDS = {word for t in TEMPLATES for word in re.findall(r"[a-z]+", t.lower())} | {
    "and",
    "an",
    "named",
    "called",
}


@pytest.fixture(scope="session")
def maker(lexicon: Lexicon) -> RequestMaker:
    return RequestMaker(lexicon)


def asked_words(request: str) -> set[str]:
    """Words of a request beyond those of any template; a word that templates have too is not seen by this test."""
    return {word for word in re.findall(r"[A-Za-z]+", request) if word.lower() not in TEMPLATE_WORDS}


def test_requested_words_are_in_the_story_and_not_reserved(maker: RequestMaker, stories: list[str]) -> None:
    rng = random.Random(5)
    num_asked = 0
    for _ in range(2000):
        request, story = maker.pair(rng.choice(stories), rng)
        words = asked_words(request)
        present = {word.lower() for word in re.findall(r"[A-Za-z]+", story)}
        for word in words:
            assert {word.lower(), plural(word.lower())} & present, (request, story)
            assert not is_reserved(word), request
        num_asked += len(words)
    assert num_asked > 2000


def test_candidates_are_unreserved_nouns(maker: RequestMaker, stories: list[str]) -> None:
    for story in stories[:300]:
        for candidate in maker.candidates(story):
            assert not is_reserved(candidate.word)
            assert candidate.word in maker.lexicon.counts


def test_substitutes_are_never_reserved(maker: RequestMaker) -> None:
    assert not [
        word for pool in maker.pools.values() for word in pool if is_reserved(word) or is_reserved(plural(word))
    ]


def test_a_substitution_is_consistent(maker: RequestMaker) -> None:
    story = "A dog saw an old dog. The dogs ran. Dog! said the boy to a dog."
    result = maker.substitute(story, "dog", random.Random(1))
    assert result is not None
    changed, new = result
    assert "dog" not in changed.lower()
    assert len(re.findall(rf"\b{new}\b", changed)) == 3
    assert len(re.findall(rf"\b{plural(new)}\b", changed)) == 1
    assert len(re.findall(rf"\b{new.capitalize()}\b", changed)) == 1
    assert not re.search(r"\ba [aeio]|\bA [aeio]|\ban [^aeiouh]", changed.replace(" an old ", " "))


def test_the_same_seed_makes_the_same_pair(maker: RequestMaker, stories: list[str]) -> None:
    assert maker.pair(stories[0], random.Random(3)) == maker.pair(stories[0], random.Random(3))


def test_a_story_without_nouns_gets_an_open_request(maker: RequestMaker) -> None:
    request, story = maker.pair("They went and went.", random.Random(0))
    assert story == "They went and went."
    assert not asked_words(request)


def test_only_assistant_turns_are_learned() -> None:
    pieces = chatml([Turn("system", "s"), Turn("user", "u"), Turn("assistant", "a")])
    assert [text for text, learn in pieces if learn] == ["a<|im_end|>"]
    assert "".join(text for text, _ in pieces) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>"
    )
