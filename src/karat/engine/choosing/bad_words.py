"""Words: the texts that sampling parameters name, as tokens of one tokenizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from karat.engine.choosing.repeats import NO_BREAKERS, Breakers
from karat.errors import RequestError
from karat.request import SamplingParams, shown
from karat.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Words:
    """`unwritten` are the token ids of bad_words, which the answer must not have; `unseen` are bad_words_ids, which
    prompt and answer must not have together. `breakers` are DRY's.
    """

    unwritten: tuple[tuple[int, ...], ...] = ()
    unseen: tuple[tuple[int, ...], ...] = ()
    breakers: Breakers = NO_BREAKERS
    # The words of one token, and those whose last token but one is the key; each with whether the prompt counts.
    _single: tuple[tuple[tuple[int, ...], bool], ...] = field(init=False, compare=False)
    _by_previous: Mapping[int, list[tuple[tuple[int, ...], bool]]] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        words = [*((word, False) for word in self.unwritten), *((word, True) for word in self.unseen)]
        by_previous: dict[int, list[tuple[tuple[int, ...], bool]]] = {}
        for word, counts in words:
            if len(word) > 1:
                by_previous.setdefault(word[-2], []).append((word, counts))
        object.__setattr__(self, "_single", tuple(each for each in words if len(each[0]) == 1))
        object.__setattr__(self, "_by_previous", by_previous)

    def barred(self, token_ids: Sequence[int], prompt_len: int) -> list[int]:
        """The tokens that would complete one of the words. Many words take no longer than few."""
        last = token_ids[-1] if len(token_ids) else -1
        return [
            word[-1]
            for word, counts in (*self._single, *self._by_previous.get(last, ()))
            if len(word) == 1
            or (
                len(token_ids) - (0 if counts else prompt_len) >= len(word) - 1
                and tuple(token_ids[1 - len(word) :]) == word[:-1]
            )
        ]


NO_WORDS = Words()


def words_of(params: SamplingParams, tokenizer: Tokenizer) -> Words:
    """The words of a request. RequestError for one of bad_words that has no tokens."""
    has_dry = params.dry_multiplier > 0
    if not (params.bad_words or params.bad_words_ids or has_dry):
        return NO_WORDS
    return Words(
        unwritten=tuple(tokens for word in params.bad_words for tokens in _spellings(word, tokenizer)),
        unseen=params.bad_words_ids,
        breakers=Breakers(params.dry_sequence_breakers if has_dry else (), tokenizer.token_bytes),
    )


def _spellings(word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The tokens of a word at the start of a text and after a space, by vLLM's rule.

    Those after a space count if they are as many and begin with another token; else the space is a token of its own.
    """
    bare, spaced = (tuple(tokenizer.encode(prefix + word.lstrip(), add_special_tokens=False)) for prefix in ("", " "))
    if not bare:
        raise RequestError(
            f"bad_words: {shown(word)} has no tokens; expected words that the tokenizer can write", param="bad_words"
        )
    return [bare, spaced] if len(spaced) == len(bare) and spaced[0] != bare[0] else [bare]
