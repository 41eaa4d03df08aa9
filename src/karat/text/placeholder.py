"""A placeholder tokenizer for models without one: the engine needs a tokenizer even for requests of token ids."""

from functools import cache

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from karat.text.tokenizer import Tokenizer
from karat.text.tokenizer_files import TokenizerFiles


@cache
def placeholder_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer with a token for each id below `vocab_size`, no special tokens and no chat template."""
    backend = Backend(models.BPE({token: i for i, token in enumerate(placeholder_tokens(vocab_size))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(TokenizerFiles(backend, {}, {}, None))


def placeholder_tokens(vocab_size: int) -> list[str]:
    """The first `vocab_size` tokens: byte-level BPE's letters of the 256 bytes, then distinct words with a space."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*tokens, *(f"Ġ{_word(i)}" for i in range(vocab_size - len(tokens)))][:vocab_size]


def _word(number: int) -> str:
    """A word for a number, different for each: its digits in base 26 as letters."""
    letters = ""
    while number >= 0:
        letters = chr(ord("a") + number % 26) + letters
        number = number // 26 - 1
    return letters
