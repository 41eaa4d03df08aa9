"""JSON from untrusted files: duplicate keys, excess size, excess depth and wrong encodings are errors.

`read_json` is for small documents (config.json). `JsonStream` walks large objects (a safetensors header, a shard index)
member by member, so that memory grows with the accepted members only.
"""

import codecs
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Never

from karat.checkpoint.files import open_regular
from karat.checkpoint.wording import foreign, shown
from karat.errors import ConfigError, KaratError

# Bytes. Python objects take up to 25 times the text they are parsed from, so any refusal stays below about 100 MB.
PIECE_LIMIT = 4 << 20
MAX_MEMBERS = 1 << 18
_CHUNK = 1 << 20
_MAX_DIGITS = 40  # tokenizer_config.json writes 10**30 for "no limit"
_SPACES = frozenset(" \t\n\r")
_BLANK = re.compile(r"[ \t\n\r]+")


class JsonError(ValueError):
    """Text that is not the expected JSON. Callers raise their own error with the file's name."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise JsonError(f"the key {shown(name)} comes twice in one object")
            seen.add(name)
    return members


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise JsonError(f"an integer of {len(digits)} digits; expected at most {_MAX_DIGITS}")
    return int(digits)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise JsonError(f"the number {shown(text)} is beyond the range of a double")
    return value


def _no_constant(name: str) -> Never:
    raise JsonError(f"{name} is not JSON; write a finite number")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_finite, parse_constant=_no_constant
)


def read_json(path: Path, error: type[KaratError] = ConfigError) -> dict[str, Any]:
    """The object in the file at `path`, at most PIECE_LIMIT bytes of strict JSON. Raises `error`."""
    file, size = open_regular(path, error)
    with file:
        if size > PIECE_LIMIT:
            raise error(f"{path}: has {size} bytes; expected at most {PIECE_LIMIT}: is this the right file?")
        stream = JsonStream(file, size)
        try:
            value = stream.value()
            stream.finish()
        except JsonError as fault:
            file.seek(0)
            what = foreign(file.read(64)) or "correct it or download it again"
            raise error(f"{path}: {fault}; {what}") from fault
    if not isinstance(value, dict):
        raise error(f"{path}: holds {shown(value)}; expected a JSON object {{…}}; download it again")
    return value


class JsonStream:
    """Walks the one JSON object in the next `num_bytes` bytes of `file`. Every method raises JsonError.

        for name in stream.members():      # the value of each member must be taken before the next
            value = stream.value()
        stream.finish()

    A string or value longer than PIECE_LIMIT characters is an error, and so are more than MAX_MEMBERS members.
    """

    def __init__(self, file: BinaryIO, num_bytes: int) -> None:
        self._file = file
        self._num_unread = num_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("strict").decode
        self._text = ""
        self._pos = 0
        self._num_dropped = 0

    def members(self) -> Iterator[str]:
        """The names of the object that begins here, in order. JsonError for a name that comes twice."""
        seen: set[str] = set()
        self._take("{")
        if self._next() == "}":
            self._pos += 1
            return
        while True:
            name = self.string()
            if name in seen:
                raise JsonError(f"the key {shown(name)} comes twice")
            if len(seen) == MAX_MEMBERS:
                raise JsonError(f"an object of more than {MAX_MEMBERS} members")
            seen.add(name)
            self._take(":")
            yield name
            if self._take(",}") == "}":
                return

    def string(self) -> str:
        """The string that begins here."""
        if self._next() != '"':
            raise self._fault("expected a string in double quotes")
        value = self.value()
        assert isinstance(value, str)
        return value

    def value(self) -> Any:
        """The value that begins here, of any kind."""
        self._next()
        self._fill(PIECE_LIMIT)
        try:
            value, end = _DECODER.raw_decode(self._text, self._pos)
            if self._text.find("\\u", self._pos, end) >= 0:
                json.dumps(value, ensure_ascii=False).encode()
        except json.JSONDecodeError as fault:
            self._pos = fault.pos
            if self._num_unread and fault.msg.startswith("Unterminated"):
                raise self._fault(f"a string of more than {PIECE_LIMIT} characters") from None
            raise self._fault(fault.msg[0].lower() + fault.msg[1:]) from None
        except UnicodeEncodeError:
            raise self._fault("half of a character (a lone surrogate)") from None
        except RecursionError:
            raise self._fault("nested too deeply") from None
        self._pos = end
        return value

    def finish(self) -> None:
        """Raise JsonError if anything but white space follows."""
        if self._next():
            raise self._fault("something follows the object")

    def _take(self, wanted: str) -> str:
        found = self._next()
        if not found or found not in wanted:
            raise self._fault("expected " + " or ".join(map(repr, wanted)))
        self._pos += 1
        return found

    def _next(self) -> str:
        """The next character that is not white space, not yet taken; '' at the end."""
        self._fill(1)
        while (found := self._text[self._pos : self._pos + 1]) in _SPACES:
            blank = _BLANK.match(self._text, self._pos)
            assert blank is not None
            self._pos = blank.end()
            self._fill(1)
        return found

    def _fill(self, num_chars: int) -> None:
        """Make `num_chars` characters available from here, or all that are left."""
        if len(self._text) - self._pos >= num_chars or not self._num_unread:
            return
        pieces = [self._text[self._pos :]]
        num_available = len(pieces[0])
        self._num_dropped += self._pos
        self._text, self._pos = "", 0
        while num_available < num_chars and self._num_unread:
            try:
                chunk = self._file.read(min(_CHUNK, self._num_unread))
            except OSError as fault:
                raise JsonError(f"reading failed: {fault.strerror}") from fault
            self._num_unread -= len(chunk)
            if not chunk:
                raise JsonError("the file ended while it was read")
            try:
                pieces.append(self._decode(chunk, not self._num_unread))
            except UnicodeDecodeError:
                raise JsonError("not UTF-8") from None
            num_available += len(pieces[-1])
        self._text = "".join(pieces)

    def _fault(self, what: str) -> JsonError:
        found = shown(self._text[self._pos : self._pos + 20])
        return JsonError(f"{what}, found {found} at character {self._num_dropped + self._pos}")
