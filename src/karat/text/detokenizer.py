"""IncrementalDetokenizer: the text of a stream of tokens, as early as it is certain, in whole characters."""

import codecs
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from karat.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns token ids into text, one at a time.

    The results of `push`, followed by that of `finish`, are `tokenizer.decode(ids)` of all pushed ids. With
    `prompt_ids` they are the text that the ids add to the prompt. The difference: SentencePiece drops one space at the
    start of a text, so the first word of an answer keeps its space only after a prompt; and a character that the
    prompt's last tokens began belongs to the stream.

    Text is held back while it ends within a character. Where bytes are tokens (SentencePiece's byte fallback), text is
    held back for the whole run of byte tokens, because one invalid byte turns *all* bytes of its run into U+FFFD. The
    cost of a stream is linear in its length.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, prompt_ids: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._stream: _Stream = _ByteLevel(tokenizer) if tokenizer.is_byte_level else _Pieces(tokenizer)
        # A character has at most four bytes and a token at least one, skipped ones aside.
        last = list(islice(filter(self._is_visible, reversed(prompt_ids)), 4))
        self._stream.follow(last[::-1])

    def push(self, token_id: int) -> str:
        """The text that `token_id` makes certain; empty for a skipped token."""
        return "" if token_id in self._skipped else self._stream.push(token_id)

    def finish(self) -> str:
        """The remaining text at the end of the stream. An incomplete character becomes U+FFFD."""
        return self._stream.finish()

    def _is_visible(self, token_id: int) -> bool:
        return token_id not in self._skipped and self._tokenizer.has_token(token_id)


class _Stream(Protocol):
    """An id without a token adds nothing."""

    def follow(self, token_ids: Sequence[int]) -> None: ...
    def push(self, token_id: int) -> str: ...
    def finish(self) -> str: ...


class _ByteLevel:
    """Every token is bytes, and the text is their UTF-8."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def follow(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _Pieces:
    """Every token is text, or one byte of a run of bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._at_start = True
        self._held: list[int] = []  # a run of byte tokens

    def follow(self, token_ids: Sequence[int]) -> None:
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        for token_id in token_ids:
            byte = self._tokenizer.fallback_byte(token_id)
            if byte is None:
                utf8.reset()
            else:
                utf8.decode(bytes([byte]))
        self._at_start = not token_ids
        num_held = len(utf8.getstate()[0])
        self._held = list(token_ids[len(token_ids) - num_held :])

    def push(self, token_id: int) -> str:
        if not self._tokenizer.has_token(token_id):
            return ""
        self._held.append(token_id)
        return "" if self._tokenizer.fallback_byte(token_id) is not None else self.finish()

    def finish(self) -> str:
        held, self._held = self._held, []
        if not self._at_start:
            return self._tokenizer.decode_continuation(held)
        self._at_start = not held
        return self._tokenizer.decode(held, skip_special_tokens=False)
