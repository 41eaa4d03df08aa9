"""Words against transformers' rule for token ids, and against vLLM's for texts, written out here."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.config import embedded_model_path
from karat.engine.choosing.bad_words import NO_WORDS, Words, words_of
from karat.errors import RequestError
from karat.request import SamplingParams
from karat.text import Tokenizer

IDS = st.lists(st.integers(0, 3), min_size=1, max_size=12)
WORDS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(Path(embedded_model_path()))


@given(IDS, WORDS)
@settings(deadline=None)
def test_ids_as_transformers_bars_them(tokens: list[int], bad: list[tuple[int, ...]]) -> None:
    torch = pytest.importorskip("torch")
    from transformers import NoBadWordsLogitsProcessor

    process = NoBadWordsLogitsProcessor([list(word) for word in bad])
    scores = process(torch.tensor([tokens]), torch.zeros(1, 5))[0].numpy()
    for prompt_len in (0, len(tokens)):
        barred = Words(unseen=tuple(bad)).barred(tokens, prompt_len)
        assert sorted(set(barred)) == np.flatnonzero(scores == -np.inf).tolist(), "the prompt counts"


@given(IDS, WORDS, st.integers(0, 12))
@settings(deadline=None)
def test_texts_are_looked_for_in_the_answer_alone(tokens: list[int], bad: list[tuple[int, ...]], prompt: int) -> None:
    prompt_len = min(prompt, len(tokens))
    answer = tokens[prompt_len:]
    want = {w[-1] for w in bad if len(w) == 1 or (len(w) - 1 <= len(answer) and answer[1 - len(w) :] == list(w[:-1]))}
    assert set(Words(unwritten=tuple(bad)).barred(tokens, prompt_len)) == want


def test_a_word_is_found_at_the_start_and_after_a_space(tokenizer: Tokenizer) -> None:
    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    for word in ("cat", " cat", "once upon", "Lily", "xylophone", "<|im_end|>"):
        bare, spaced = ids(word.lstrip()), ids(" " + word.lstrip())
        want = [bare] + ([spaced] if len(spaced) == len(bare) and spaced[0] != bare[0] else [])
        assert list(words_of(SamplingParams(bad_words=(word,)), tokenizer).unwritten) == want
    assert len(words_of(SamplingParams(bad_words=("the",)), tokenizer).unwritten) == 2, "it has both as one token"


def test_nothing_named_is_no_work(tokenizer: Tokenizer) -> None:
    assert words_of(SamplingParams(), tokenizer) is NO_WORDS
    assert NO_WORDS.barred([1, 2, 3], 1) == []


def test_a_word_without_tokens_is_refused_by_name(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"^bad_words: '  ' has no tokens; expected "):
        words_of(SamplingParams(bad_words=("  ",)), tokenizer)


def test_breakers_are_those_of_the_tokenizer(tokenizer: Tokenizer) -> None:
    breakers = words_of(SamplingParams(dry_multiplier=0.8), tokenizer).breakers
    text = tokenizer.encode('She said: "Yes.', add_special_tokens=False)
    assert breakers.num_after(text, 99) == len(tokenizer.encode("Yes.", add_special_tokens=False))
    ended = tokenizer.encode("Hello.\n", add_special_tokens=False)
    assert breakers.num_after(ended, 99) == 0 and breakers.within(ended[-1])
