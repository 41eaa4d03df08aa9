"""Untrusted names and values in error messages: printable, on one line, of bounded length."""

import json
import re
from collections.abc import Collection

from karat import request

_FOREIGN = {
    b"<": "it looks like a web page: the download failed or needs a login; download it again",
    b"version ": "it is a Git LFS pointer, not the file: run `git lfs pull` there",
}


def shown(value: object) -> str:
    """What a file says, for an error message: as `karat.request.shown` has it, in ASCII alone."""
    text = request.shown(value)
    line = text.removesuffix("…").encode("ascii", "backslashreplace").decode()
    return line if len(line) <= 80 and not text.endswith("…") else line[:79] + "…"


def as_json(value: object) -> str:
    """A value of a JSON file as the file spells it, for an error message: `null`, not None."""
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:79] + "…"


_KINDS = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "a text",
    "bytes": "bytes",
    "dict": "an object",
    "list": "a list",
    "array": "a list",
    "object": "an object",
    "NoneType": "null",
    "null": "null",
}
_SPELLED = re.compile(rf"`({'|'.join(_KINDS)})`")


def kind_of(kind: type) -> str:
    """A kind of values of files, in the words of who writes them."""
    return _KINDS.get(kind.__name__, kind.__name__)


def in_words(fault: Exception) -> str:
    """What msgspec says of a JSON text that is of another kind than expected, without names of Python's types."""
    return _SPELLED.sub(lambda found: _KINDS[found[1]], str(fault))


def listed(names: Collection[str], limit: int = 10) -> str:
    """The first `limit` names, and the number of the others."""
    first = ", ".join(name for name, _ in zip(names, range(limit), strict=False))
    return first + (f" and {len(names) - limit} more" if len(names) > limit else "")


def foreign(head: bytes) -> str | None:
    """What a file of JSON or of a tokenizer is instead, by its first bytes, and what to do; None if it is neither."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return next((said for magic, said in _FOREIGN.items() if start.startswith(magic)), None)
