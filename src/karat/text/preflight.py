"""What the `tokenizers` library is known to panic on, found before it does: a panic writes lines of its own to stderr.

Three parts of a tokenizer.json do so: a prefix of pieces that the merges lack, SentencePiece's table of characters if
it is damaged, and a regular expression that gives up on some texts. The first two are refused. The last may be right
for all texts that anybody gives, so stderr is taken away from the library while it searches with one.
"""

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
# An escape, a comment, a repeat (with its kind), or one character.
_REGEX_PART = re.compile(r"\\[pPx]\{[^}]*\}|\\.|\(\?#[^)]*\)|(?:[*+?]|\{\d*,?\d*\})[+?]?|.", re.DOTALL)
_MANY = 16  # repeats are as good as endless
_MOST_REPEATS = 3  # endless ones in a row that the expressions in use have at most
_stderr = Lock()  # whoever holds it may point descriptor 2 elsewhere


def lacks_prefix(data: bytes) -> str | None:
    """A merge of a tokenizer.json whose second piece has not the prefix that all such pieces have, or None."""
    if not _PREFIX.search(data):
        return None
    try:
        model = json.loads(data)["model"]
        prefix, merges = model["continuing_subword_prefix"], model.get("merges", ())
        seconds = (merge.split(" ")[-1] if isinstance(merge, str) else merge[1] for merge in merges)
        return next((piece for piece in seconds if not piece.startswith(prefix)), None)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # the library says what is wrong with it


def is_damaged(table: str | None) -> bool:
    """Whether SentencePiece's table of characters leads out of itself: a trie (darts-clone), then texts."""
    data = base64.b64decode(table or "")
    num_bytes = int.from_bytes(data[:4], "little")
    trie, texts = data[4 : 4 + num_bytes], data[4 + num_bytes :]
    if len(trie) != num_bytes or num_bytes % 4 or not trie:
        return True
    units = np.frombuffer(trie, "<u4").astype(np.int64)
    offsets = (units >> 10) << ((units & 512) >> 6)
    found = np.arange(len(units)) ^ offsets
    is_node = units < 1 << 31  # else it is the value of a text
    if (found[is_node] | 255).max(initial=0) >= len(units):
        return True
    values = units[found[is_node & (units & 256 != 0)]] & ((1 << 31) - 1)
    if values.max(initial=0) > len(texts):
        return True
    begins = np.frombuffer(texts + b"\0", np.uint8)[values]
    return bool((begins & 0xC0 == 0x80).any())  # in the middle of a character


def patterns(parts: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The regular expressions among steps of a normalizer, pre-tokenizer or decoder."""
    for step in parts:
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and "Regex" in pattern:
            yield pattern["Regex"]


def may_give_up(pattern: str) -> bool:
    """Whether a search may try too many ways: a choice or an endless repeat in an endless repeat, or many in a row."""
    groups = [(False, 0)]  # of each open group: whether it has a choice, its endless repeats in a row
    atom = (False, 0)  # what a repeat would repeat
    place = 0
    while part := _REGEX_PART.match(pattern, place):
        text, place = part[0], part.end()
        if text == "[":
            place, atom = _end_of_class(pattern, place), (False, 0)
        elif text == "(":
            groups.append((False, 0))
        elif text == ")" and len(groups) > 1:
            atom = groups.pop()
            groups[-1] = groups[-1][0] or atom[0], groups[-1][1] + atom[1]
        elif text == "|":
            groups[-1] = True, 0
        elif _is_endless(text):
            has_choice, in_a_row = groups[-1]
            groups[-1] = has_choice, in_a_row + 1
            if any(atom) or in_a_row == _MOST_REPEATS:
                return True
            atom = (False, 1)
        elif text[0] not in "?{":
            atom = (False, 0)
    return False


@contextmanager
def stderr_kept() -> Iterator[None]:
    """What is written to descriptor 2 inside comes there at the end, or never if a BaseException passes.

    Other threads' lines too, so it is for the few tokenizers that may panic.
    """
    import tempfile  # which few need, and which takes a while

    with _stderr, tempfile.TemporaryFile(buffering=0) as kept:
        try:
            before = os.dup(2)
        except OSError:  # closed: nobody would see it
            yield
            return
        try:
            os.dup2(kept.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(before, 2)
            kept.seek(0)
            os.write(2, kept.read())
        finally:
            os.close(before)


def _is_endless(text: str) -> bool:
    if text[0] in "*+":
        return True
    if text[0] != "{" or len(text) < 3:
        return False
    _, comma, most = text.rstrip("+?").strip("{}").partition(",")
    return (bool(comma) and not most) or (most.isdecimal() and int(most) > _MANY)


def _end_of_class(pattern: str, place: int) -> int:
    """Behind the class [...] whose first character is at `place`; classes may lie in it, and ] may be the first."""
    place += pattern.startswith("^", place)
    place += pattern.startswith("]", place)
    depth = 1
    while depth and place < len(pattern):
        depth += {"[": 1, "]": -1}.get(pattern[place], 0)
        place += 2 if pattern[place] == "\\" else 1
    return place
