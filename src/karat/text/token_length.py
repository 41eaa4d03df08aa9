"""LengthLimit refuses a text or a conversation that is too long before it is tokenised or rendered."""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Backend

from karat.errors import CapacityError

MAX_UNMEASURED_CHARS = 1 << 20  # of a prompt without a bound on characters a token: 2 seconds of work
# Of a conversation in proportion to the context. Templates leave out blanks and old reasoning: hardly seven eighths.
MAX_SHRINKING = 8
MAX_UNMEASURED_MESSAGES = 4096  # of a conversation with more messages than the context has tokens
_KEEPING = {"ByteLevel", "Lowercase", "NFD", "NFKD", "Prepend"}  # normalizers that do not shorten any text
_COMPOSING = {"NFC", "NFKC"}
_MOST_COMPOSED = 4  # characters that NFC or NFKC may compose into one
_CUTTING = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"}  # pre-tokenizers that may keep all text


class LengthLimit:
    """What a tokenizer can make of a text of so many characters. `alphabet`: the letters of byte-level BPE."""

    def __init__(self, backend: Backend, alphabet: str) -> None:
        self._backend = backend
        self._alphabet = alphabet

    def check_text(self, text: str, max_tokens: int) -> None:
        """CapacityError for a text that has more than `max_tokens` tokens even of the longest."""
        if len(text) <= max_tokens:
            return
        longest = self._most_chars
        if longest is not None and len(text) > max_tokens * longest:
            raise CapacityError(
                f"the prompt has {len(text)} characters, and the context of {max_tokens} tokens, of which none stands "
                f"for more than {longest}, holds at most {max_tokens * longest}; shorten the prompt",
                param="prompt",
            )
        # A tokenizer that drops or joins characters may make few tokens of any text.
        if len(text) > MAX_UNMEASURED_CHARS and len(text) > max_tokens * self._longest_token:
            raise CapacityError(
                f"the prompt has {len(text)} characters; expected at most "
                f"{max(MAX_UNMEASURED_CHARS, max_tokens * self._longest_token)} for a context of {max_tokens} tokens; "
                "shorten the prompt",
                param="prompt",
            )

    def check_conversation(self, conversation: Mapping[str, Any], max_tokens: int) -> None:
        """CapacityError for a conversation (messages, tools, …) that is many times too long, RecursionError for one
        that is nested too deeply.
        """
        if (count := len(conversation["messages"])) > max(max_tokens, MAX_UNMEASURED_MESSAGES):
            raise CapacityError(
                f"the conversation has {count} messages; expected at most {max(max_tokens, MAX_UNMEASURED_MESSAGES)} "
                f"for a context of {max_tokens} tokens; shorten the prompt",
                param="prompt",
            )
        num_chars = _num_chars(conversation)
        if num_chars <= MAX_UNMEASURED_CHARS:
            return
        if num_chars > (most := max(MAX_UNMEASURED_CHARS, max_tokens * self._longest_token * MAX_SHRINKING)):
            raise CapacityError(
                f"the conversation has {num_chars} characters; expected at most {most} for a context of {max_tokens} "
                "tokens; shorten the prompt",
                param="prompt",
            )

    @cached_property
    def _most_chars(self) -> int | None:
        return max_token_chars(self._backend, self._alphabet)

    @cached_property
    def _longest_token(self) -> int:
        """The characters of the longest token in the vocabulary's spelling."""
        return max(map(len, self._backend.get_vocab()), default=0)


def steps(part: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer, post-processor or decoder, as in tokenizer.json."""
    return [] if part is None else list(_flat(json.loads(part.__getstate__())))


def max_token_chars(backend: Backend, alphabet: str) -> int | None:
    """The most characters of a text that become one token; None if there is no such bound.

    There is none where spaces or unknown characters are dropped or joined. `alphabet`: the letters of byte-level BPE.
    """
    normalizer, cuts, model = steps(backend.normalizer), steps(backend.pre_tokenizer), backend.model
    added = backend.get_added_tokens_decoder().values()
    if type(model).__name__ != "BPE" or any(token.lstrip or token.rstrip for token in added):
        return None
    if not all(map(_keeps_length, normalizer)):
        return None
    if not all(step["type"] in _CUTTING and step.get("behavior") != "Removed" for step in cuts):
        return None
    vocab = backend.get_vocab()
    if any(step["type"] == "ByteLevel" for step in (*normalizer, *cuts)):
        is_complete = all(letter in vocab for letter in alphabet)
    elif model.byte_fallback:
        is_complete = all(f"<0x{byte:02X}>" in vocab for byte in range(256))
    else:
        is_complete = model.unk_token in vocab and not model.fuse_unk
    if not is_complete:
        return None
    composed = _MOST_COMPOSED if any(step["type"] in _COMPOSING for step in normalizer) else 1
    return max(map(len, vocab)) * composed


def _keeps_length(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        pattern = step["pattern"].get("String")
        return pattern is not None and len(step["content"]) >= len(pattern)
    return step["type"] in _KEEPING | _COMPOSING


def _flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The step itself, or the steps of a sequence, nested ones included."""
    if step["type"] != "Sequence":
        yield step
        return
    for key in ("normalizers", "pretokenizers", "processors", "decoders"):
        for inner in step.get(key, ()):
            yield from _flat(inner)


def _num_chars(value: Any) -> int:
    """The characters of all texts in a JSON-like value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(key) if isinstance(key, str) else 0 for key in value) + sum(map(_num_chars, value.values()))
    return sum(map(_num_chars, value)) if isinstance(value, list | tuple) else 0
