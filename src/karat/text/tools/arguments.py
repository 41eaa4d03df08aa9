"""Arguments of a call in a conversation, read from the text in which an answer told them."""

import json
import re
from collections.abc import Mapping
from typing import Any

from karat.text.tools.values import MalformedError, ValueScan

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)
_CLOSING = {"{": "}", "[": "]"}
_MAX_ESCAPE = 6  # characters of an escape


def read_arguments(text: str) -> Mapping[str, Any] | None:
    """The JSON object that `text` is; of the beginning of one, as answers that are cut have it, what it tells so far.

    The open text or number ends where it was cut, a key without a value is left out, and what is open is closed. An
    empty text is an empty object. Half of a surrogate pair is U+FFFD. None for anything else.
    """
    found = _object(text or "{}")
    if found is None:
        found = next((made for ended in _ended(text) if (made := _object(ended)) is not None), None)
    return found


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            return None
        plain = json.dumps(value, ensure_ascii=False)
        whole = plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value if whole == plain else dict(json.loads(whole))
    except (ValueError, RecursionError):
        return None


def _ended(text: str) -> list[str]:
    """What the object may be that `text` begins, the one that keeps most first. None if it begins no object."""
    if not _begins_object(text):
        return []
    closing: list[str] = []  # what will close the open brackets, the innermost last
    kept, before, is_open_text = "", "", False
    for found in _TOKEN.finditer(text):
        token, is_last = found[0], found.end() == len(text)
        is_text = token[0] == '"'
        is_open_text = is_text and is_last and not _is_closed(token)
        is_value = before == ":" or (before in ("[", ",") and closing[-1:] == ["]"])
        if token in _CLOSING:
            closing.append(_CLOSING[token])
        elif token in ("}", "]"):
            closing.pop()
        if token in "{}[]" or (is_value and (not is_last or is_text) and not is_open_text):
            kept = text[: found.end()] + "".join(reversed(closing))
        before = token
    close = "".join(reversed(closing))
    texts = [text[: len(text) - cut] + '"' + close for cut in range(_MAX_ESCAPE)] if is_open_text else []
    return [*texts, text + close, kept]


def _begins_object(text: str) -> bool:
    scan = ValueScan(lambda _: None)
    try:
        for char in text:
            if scan.done:
                return False
            scan.push(char)
    except MalformedError:
        return False
    return text.lstrip().startswith("{")


def _is_closed(text: str) -> bool:
    """Whether a text that begins with a quote ends with another."""
    inner = text[1:-1]
    return len(text) > 1 and text[-1] == '"' and (len(inner) - len(inner.rstrip("\\"))) % 2 == 0
