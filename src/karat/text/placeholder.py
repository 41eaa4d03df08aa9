"""A tokenizer of made-up words, for models that have none: the engine wants one even for requests that are ids."""

from functools import cache

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from karat.text.tokenizer import Tokenizer
from karat.text.tokenizer_files import TokenizerFiles


@cache
def placeholder_tokenizer(vocab_size: int) -> Tokenizer:
    """A token for each id, none of them special, and no chat template."""
    backend = Backend(models.BPE({token: i for i, token in enumerate(placeholder_tokens(vocab_size))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(TokenizerFiles(backend, {}, {}, None))


def placeholder_tokens(vocab_size: int) -> list[str]:
    """Byte-level BPE's spelling of the 256 bytes, then of made-up words, each with a space before it."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*tokens, *(f"Ġ{_word(i)}" for i in range(vocab_size - len(tokens)))][:vocab_size]


def _word(number: int) -> str:
    """Letters that no other number has: its digits in base 26."""
    letters = ""
    while number >= 0:
        letters = chr(ord("a") + number % 26) + letters
        number = number // 26 - 1
    return letters
