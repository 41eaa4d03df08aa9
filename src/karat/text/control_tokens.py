"""ControlTokens: keeps control tokens that a conversation spells, such as `<|im_end|>` in a user's message, as text.

Each such token is put between two private-use characters before the conversation is rendered. After rendering, marked
tokens are text and unmarked ones are the template's. A template that cuts a marked text may separate a token from its
marks; a single mark still separates the text on its two sides, so it is never read as one token. Where a template
prints a list or writes ASCII-only JSON, the marks appear as escapes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from karat.errors import RequestError

_START, _END = "\U000f0000", "\U000f0001"
_ANY_START, _ANY_END = (
    rf"(?:{mark}|\\+U{ord(mark):08x}|\\+udb80\\+udc{ord(mark) & 0xFF:02x})" for mark in (_START, _END)
)
_ANY_MARK = re.compile(f"{_ANY_START}|{_ANY_END}")


class ControlTokens:
    """Marks `tokens` in a conversation, and finds the marks in the rendered text."""

    def __init__(self, tokens: Iterable[str]) -> None:
        any_token = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)"
        self._token = re.compile(any_token)
        self._mark = re.compile(f"{_ANY_START}({any_token}){_ANY_END}|{_ANY_MARK.pattern}")

    def mark(self, value: Any) -> Any:
        """A copy of `value` with every token in its strings marked, except in keys of mappings.

        Raises `RequestError` for a text that contains one of the marks.
        """
        if isinstance(value, str):
            if found := _ANY_MARK.search(value):
                raise RequestError(
                    f"the conversation holds {found[0]!a}, which Karat uses to mark control tokens; "
                    "expected text without it; take it out"
                )
            return self._token.sub(f"{_START}\\g<0>{_END}", value)
        if isinstance(value, Mapping):
            return {key: self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(self.mark, value))
        return value

    def split(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """The pieces of `rendered` without the marks, each with True for a marked token."""
        for index, piece in enumerate(self._mark.split(rendered)):
            yield piece or "", index % 2 == 1
