"""Checks for the known panics of the `tokenizers` library, which writes lines to stderr when it panics.

Three parts of a tokenizer.json cause panics: a prefix of pieces that the merges lack, a damaged table of characters of
SentencePiece, and a regular expression that gives up on some texts. The first two are refused. The third may work for
every text in use, so it is allowed, and stderr is redirected while the library searches with it.
"""

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

import numpy as np

_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
# An escape, a comment, a repeat (with its kind), or one character.
_REGEX_PART = re.compile(r"\\[pPx]\{[^}]*\}|\\.|\(\?#[^)]*\)|(?:[*+?]|\{\d*,?\d*\})[+?]?|.", re.DOTALL)
_MANY = 16  # more repeats than this count as endless
_MOST_REPEATS = 3  # endless repeats in a row; no expression in use has more
_stderr = Lock()  # held while descriptor 2 is redirected


def lacks_prefix(data: bytes) -> str | None:
    """The second piece of a merge that lacks continuing_subword_prefix; None if the tokenizer.json has no such."""
    if not _PREFIX.search(data):
        return None
    try:
        model = json.loads(data)["model"]
        prefix, merges = model["continuing_subword_prefix"], model.get("merges", ())
        seconds = (merge.split(" ")[-1] if isinstance(merge, str) else merge[1] for merge in merges)
        return next((piece for piece in seconds if not piece.startswith(prefix)), None)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # the library reports the fault


def has_damaged_table(data: bytes) -> bool:
    """Whether any precompiled_charsmap of the tokenizer.json is damaged.

    The library reserves as much memory as such a table says it has, before it reads it.
    """
    damaged = []

    def look(part: dict[str, Any]) -> None:
        if "precompiled_charsmap" in part:
            damaged.append(is_damaged(part["precompiled_charsmap"]))

    if b"precompiled_charsmap" in data:
        with suppress(ValueError, RecursionError):  # the library reports the fault
            json.loads(data, object_hook=look)
    return any(damaged)


def is_damaged(table: object) -> bool:
    """Whether an offset of SentencePiece's table of characters leads outside it. The table, in base 64:

    byte 0              4                   4 + n
         | n: uint32 LE | trie, n bytes     | texts, each ended by NUL |
                          uint32 units of darts-clone
    """
    try:
        data = base64.b64decode(table if isinstance(table, str) else "", validate=True)
    except ValueError:
        return True
    num_bytes = int.from_bytes(data[:4], "little")
    trie, texts = data[4 : 4 + num_bytes], data[4 + num_bytes :]
    if len(trie) != num_bytes or num_bytes % 4 or not trie:
        return True
    units = np.frombuffer(trie, "<u4").astype(np.int64)
    offsets = (units >> 10) << ((units & 512) >> 6)
    found = np.arange(len(units)) ^ offsets
    is_node = units < 1 << 31  # else the unit is the offset of a text
    if (found[is_node] | 255).max(initial=0) >= len(units):
        return True
    values = units[found[is_node & (units & 256 != 0)]] & ((1 << 31) - 1)
    if values.max(initial=0) > len(texts):
        return True
    begins = np.frombuffer(texts + b"\0", np.uint8)[values]
    return bool((begins & 0xC0 == 0x80).any())  # in the middle of a character


def patterns(parts: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The regular expressions in steps of a normalizer, pre-tokenizer or decoder."""
    for step in parts:
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and "Regex" in pattern:
            yield pattern["Regex"]


def may_give_up(pattern: str) -> bool:
    """Whether a search may try too many alternatives and give up.

    So it is for a choice or an endless repeat inside an endless repeat, and for many endless repeats in a row.
    """
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
def stderr_held_back() -> Iterator[None]:
    """Output to descriptor 2 inside is written at the end, or dropped if a BaseException passes.

    That includes lines of other threads, so it is used only for the few tokenizers that may panic.
    """
    import tempfile  # slow to import, and rarely needed

    with _stderr, tempfile.TemporaryFile(buffering=0) as kept:
        try:
            before = os.dup(2)
        except OSError:  # descriptor 2 is closed, so nothing would be seen
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
    """The index after the class [...] whose first character is at `place`. Classes may nest, and ] may come first."""
    place += pattern.startswith("^", place)
    place += pattern.startswith("]", place)
    depth = 1
    while depth and place < len(pattern):
        depth += {"[": 1, "]": -1}.get(pattern[place], 0)
        place += 2 if pattern[place] == "\\" else 1
    return place
