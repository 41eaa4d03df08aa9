"""ValueScan: reads one value, JSON or Python, character by character, and writes it as JSON that every reader takes."""

import math
import re
from collections.abc import Callable

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_JSON_WORDS = {"true": "true", "false": "false", "null": "null"}
_PYTHON_WORDS = _JSON_WORDS | {"True": "true", "False": "false", "None": "null"}
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}
# What a backslash and a letter mean in Python, where JSON writes it otherwise or not at all.
_PYTHON_ESCAPES = {"'": "'", "a": "\\u0007", "v": "\\u000b"}
SPACE = " \t\r\n"
MAX_DEPTH = 128  # of brackets in one another; readers that people use end there
_NO_CHARACTER = "\\ufffd"  # U+FFFD, as where a text ends inside a character


class MalformedError(Exception):
    """The next character does not fit."""


class ValueScan:
    """One value. `write` gets it as JSON, in pieces; `done` says whether it is whole.

    `has_inner`: it is an object or array, and a value in it was begun, or is whole if it is a number or a word.

    With `python`, strings may have single quotes and Python's escapes, and True, False and None are words too.

    Half of a surrogate pair becomes U+FFFD. Numbers beyond float64 and brackets deeper than MAX_DEPTH do not fit: one
    reader of JSON takes them for infinity, another for null, and another takes none of the answer.
    """

    def __init__(self, write: Callable[[str], None], *, python: bool = False) -> None:
        self.done = False
        self.has_inner = False
        self._write = write
        self._python = python
        self._words = _PYTHON_WORDS if python else _JSON_WORDS
        self._open: list[str] = []  # the brackets that will close the open ones
        self._state: Callable[[str], bool] = self._value
        self._quote = ""  # of the open string
        self._is_key = False
        self._taken: list[str] = []  # of a number, a word or an escape
        self._escape = ""
        self._high = ""  # the escape of the first half of a surrogate pair, until the next character

    def push(self, char: str) -> bool:
        """Whether `char` belongs to the value; if not, the value is whole. MalformedError where it does not fit."""
        return self._state(char)

    def _value(self, char: str) -> bool:
        if char and char in SPACE:
            self._write(char)
        elif char == "{":
            self._nest(char, "}", self._first_key)
        elif char == "[":
            self._nest(char, "]", self._first_item)
        elif self._opens_string(char):
            self._begin_string(char, is_key=False)
        elif char.isascii() and (char.isalnum() or char == "-"):
            self._taken = [char]
            self._state = self._bare
        else:
            raise MalformedError
        return True

    def _nest(self, char: str, close: str, state: Callable[[str], bool]) -> None:
        if len(self._open) == MAX_DEPTH:
            raise MalformedError
        self.has_inner |= bool(self._open)
        self._write(char)
        self._open.append(close)
        self._state = state

    def _first_item(self, char: str) -> bool:
        return self._close() if char == "]" else self._keep_on_space(char, self._value)

    def _first_key(self, char: str) -> bool:
        return self._close() if char == "}" else self._keep_on_space(char, self._key)

    def _keep_on_space(self, char: str, state: Callable[[str], bool]) -> bool:
        if char and char in SPACE:
            self._write(char)
            return True
        return state(char)

    def _key(self, char: str) -> bool:
        if char and char in SPACE:
            self._write(char)
        elif self._opens_string(char):
            self._begin_string(char, is_key=True)
        else:
            raise MalformedError
        return True

    def _colon(self, char: str) -> bool:
        if char != ":" and (not char or char not in SPACE):
            raise MalformedError
        self._write(char)
        if char == ":":
            self._state = self._value
        return True

    def _after(self, char: str) -> bool:
        if char == self._open[-1]:
            return self._close()
        if char != "," and (not char or char not in SPACE):
            raise MalformedError
        self._write(char)
        if char == ",":
            self._state = self._key if self._open[-1] == "}" else self._value
        return True

    def _close(self) -> bool:
        self._write(self._open.pop())
        self._end_value()
        return True

    def _end_value(self) -> None:
        self.done = not self._open
        self._state = self._after

    def _bare(self, char: str) -> bool:
        """A number or a word, which ends before the character that does not belong to it."""
        if char and char.isascii() and (char.isalnum() or char in "+-."):
            self._taken.append(char)
            return True
        text = "".join(self._taken)
        if text not in self._words and not (_NUMBER.fullmatch(text) and math.isfinite(float(text))):
            raise MalformedError
        self.has_inner |= bool(self._open)
        self._write(self._words.get(text, text))
        self._end_value()
        return False if self.done else self._after(char)

    def _opens_string(self, char: str) -> bool:
        return char == '"' or (self._python and char == "'")

    def _begin_string(self, quote: str, *, is_key: bool) -> None:
        self.has_inner |= not is_key and bool(self._open)
        self._write('"')
        self._quote, self._is_key = quote, is_key
        self._state = self._string

    def _string(self, char: str) -> bool:
        if char != "\\":
            self._end_half()
        if char == self._quote:
            self._write('"')
            if self._is_key:
                self._state = self._colon
            else:
                self._end_value()
        elif char == "\\":
            self._state = self._escaped
        elif char < " ":  # a control character, or the end
            raise MalformedError
        else:
            self._write('\\"' if char == '"' else char)
        return True

    def _escaped(self, char: str) -> bool:
        if char == "u" or (self._python and char in ("x", "U")):
            self._escape, self._taken = char, []
            self._state = self._hex
            return True
        self._end_half()
        if char and char in '"\\/bfnrt' and not (self._python and char == "/"):
            self._write("\\" + char)
        elif not self._python or char < " " or char in "01234567N":  # octal digits, and names of characters
            raise MalformedError
        else:
            self._write(_PYTHON_ESCAPES.get(char, "\\\\" + char))
        self._state = self._string
        return True

    def _hex(self, char: str) -> bool:
        if not char or char not in "0123456789abcdefABCDEF":
            raise MalformedError
        self._taken.append(char)
        if len(self._taken) == _HEX_LENGTHS[self._escape]:
            self._unit("".join(self._taken))
            self._state = self._string
        return True

    def _unit(self, digits: str) -> None:
        """A character by its number, or a half of one that has a surrogate pair."""
        code = int(digits, 16)
        if 0xDC00 <= code <= 0xDFFF and self._high:
            self._write(f"{self._high}\\u{digits[-4:]}")
            self._high = ""
            return
        self._end_half()
        if 0xD800 <= code <= 0xDBFF:
            self._high = f"\\u{digits[-4:]}"
        elif 0xDC00 <= code <= 0xDFFF:
            self._write(_NO_CHARACTER)
        else:
            self._write(f"\\u{digits}" if self._escape == "u" else _escape_of(code))

    def _end_half(self) -> None:
        """The second half of a surrogate pair did not come."""
        if self._high:
            self._write(_NO_CHARACTER)
            self._high = ""


def _escape_of(code: int) -> str:
    """A character as JSON's escapes, of which those beyond U+FFFF have two."""
    if code > 0x10FFFF:
        raise MalformedError
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
