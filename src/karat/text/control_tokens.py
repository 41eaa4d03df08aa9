"""ControlTokens: keeps control tokens that a conversation spells, such as `<|im_end|>` in a user's message, as text.

Each such token is put between two private-use characters before the conversation is rendered. After rendering, marked
tokens are text and unmarked ones are the template's. A template that cuts a marked text may separate a token from its
marks; a single mark still separates the text on its two sides, so it is never read as one token. Where a template
prints a list or writes ASCII-only JSON, the marks appear as escapes.

A search holds the interpreter's lock while it lasts, and a conversation may be of megabytes: a server in the same
process would stand still. So no search goes through more than MAX_SCANNED characters, and none begins inside a run of
backslashes, which would make it quadratic.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from karat.checkpoint.wording import shown
from karat.errors import RequestError

_START, _END = "\U000f0000", "\U000f0001"
_ANY_START, _ANY_END = (
    rf"(?:{mark}|\\+U{ord(mark):08x}|\\+udb80\\+udc{ord(mark) & 0xFF:02x})" for mark in (_START, _END)
)
_ANY_MARK = re.compile(f"{_ANY_START}|{_ANY_END}")
_HINT = re.compile(f"{_START}|{_END}|U000f000[01]|udb80")  # in every mark; in an escape after backslashes
_MAX_HINT_CHARS = 9
MAX_SCANNED = 1 << 16  # 5 ms


class Written(str):
    """A text in pieces, each with True where the control tokens in it are meant: a model wrote them, or would have."""

    pieces: tuple[tuple[str, bool], ...]

    def __new__(cls, *pieces: tuple[str, bool]) -> Self:
        made = super().__new__(cls, "".join(text for text, _ in pieces))
        made.pieces = pieces
        return made


class ControlTokens:
    """Marks `tokens` in a conversation, and finds the marks in the rendered text."""

    def __init__(self, tokens: Iterable[str]) -> None:
        known = sorted(tokens, key=len, reverse=True)
        any_token = "|".join(map(re.escape, known)) or "(?!)"
        self._token = re.compile(any_token)
        self._max_token_chars = len(known[0]) if known else 0
        self._mark = re.compile(f"{_ANY_START}({any_token}){_ANY_END}|{_ANY_MARK.pattern}")

    def mark(self, value: Any) -> Any:
        """A copy of `value` with every token in its strings marked, except in keys of mappings and where it is meant.

        Raises `RequestError` for a text that contains one of the marks.
        """
        if isinstance(value, Written):
            return "".join(text if is_meant else self.mark(text) for text, is_meant in value.pieces)
        if isinstance(value, str):
            if found := next(_marks(_ANY_MARK, value), None):
                raise RequestError(
                    f"the conversation holds {shown(found[0])}, which Karat uses to mark control tokens; "
                    "expected text without it; take it out"
                )
            parts: list[str] = []
            at = 0
            for found in _found(self._token, value, self._max_token_chars):
                parts += (value[at : found.start()], _START, found[0], _END)
                at = found.end()
            return "".join((*parts, value[at:])) if parts else value
        if isinstance(value, Mapping):
            return {key: self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(self.mark, value))
        return value

    def split(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """The pieces of `rendered` without the marks, each with True for a marked token."""
        at = 0
        for found in _marks(self._mark, rendered):
            yield rendered[at : found.start()], False
            yield found[1] or "", True
            at = found.end()
        yield rendered[at:], False


def _found(pattern: re.Pattern[str], text: str, max_chars: int) -> Iterator[re.Match[str]]:
    """As `pattern.finditer(text)`, for a pattern of texts of 1 to `max_chars` characters."""
    start = 0
    while start < len(text):
        end = start + MAX_SCANNED
        for found in pattern.finditer(text, start, end + max_chars):
            if found.start() >= end:
                break
            yield found
            start = found.end()
        start = max(start, end)


def _marks(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """As `pattern.finditer(text)`, for a pattern whose matches begin with a mark."""
    at = 0
    for hint in _found(_HINT, text, _MAX_HINT_CHARS):
        start = hint.start()
        if start < at:
            continue  # inside the last one
        if hint[0][0] in "Uu":
            while start > at and text[start - 1] == "\\":
                start -= 1
        if found := pattern.match(text, start):
            yield found
            at = found.end()
