"""Repetitions of a text in its last tokens: what DRY penalises and what no_repeat_ngram_size bars.

Pure functions of the tokens. Both ask the same question: which tokens followed, earlier in the text, the tokens that it
ends with, and how long was the part that was alike?
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Ids = NDArray[np.int64]

_NUM_ROUNDS = 64  # of comparing all places at once; texts that repeat for longer are measured in one pass
_LARGEST = float(np.finfo(np.float32).max)  # of a power of dry_base, as in llama.cpp, which computes in float32


class Breakers:
    """The texts over which no repetition of DRY reaches, found in tokens by their bytes.

    `token_bytes` gives the bytes of a token. A breaker may lie in one token or across several.
    """

    def __init__(self, texts: Sequence[str], token_bytes: Callable[[int], bytes]) -> None:
        self._texts = tuple(text.encode() for text in texts)
        self._token_bytes = token_bytes
        self._bytes: dict[int, bytes] = {}
        self._heads: dict[int, tuple[bytes, ...]] = {}  # token -> what must stand before it for a breaker to end in it

    def within(self, token_id: int) -> bool:
        """Whether a token alone has a breaker; DRY never penalises it."""
        return b"" in self._heads_of(token_id)

    def num_after(self, token_ids: Sequence[int], most: int) -> int:
        """How many tokens come after the last breaker in `token_ids`; `most` if it lies farther back, or nowhere."""
        for count in range(min(most, len(token_ids))):
            place = len(token_ids) - 1 - count
            if any(self._ends_with(token_ids, place, head) for head in self._heads_of(token_ids[place])):
                return count
        return most

    def _ends_with(self, token_ids: Sequence[int], stop: int, head: bytes) -> bool:
        """Whether the bytes of the tokens before `stop` end with `head`."""
        found = b""
        while len(found) < len(head) and stop > 0:
            stop -= 1
            found = self._bytes_of(token_ids[stop]) + found
        return found.endswith(head)

    def _heads_of(self, token_id: int) -> tuple[bytes, ...]:
        if (known := self._heads.get(token_id)) is not None:
            return known
        own = self._bytes_of(token_id)
        found = [b""] if any(text in own for text in self._texts) else []
        if not found:
            for text in self._texts:
                sizes = range(1, min(len(own), len(text) - 1) + 1)
                found += [text[:-size] for size in sizes if text.endswith(own[:size])]
        self._heads[token_id] = tuple(found)
        return self._heads[token_id]

    def _bytes_of(self, token_id: int) -> bytes:
        if (known := self._bytes.get(token_id)) is None:
            known = self._bytes[token_id] = self._token_bytes(token_id)
        return known


NO_BREAKERS = Breakers((), lambda _: b"")


def matched(token_ids: Ids, limit: int) -> Ids:
    """For each place [tokens]: how many tokens before it are those that the whole text ends with, at most `limit`."""
    lengths = np.zeros(len(token_ids), np.int64)
    if limit == 0 or len(token_ids) == 0:
        return lengths
    places = np.flatnonzero(token_ids[:-1] == token_ids[-1]) + 1
    for length in range(1, _NUM_ROUNDS + 1):
        lengths[places] = length
        if length == limit:
            return lengths
        places = places[places > length]
        if len(places):
            places = places[token_ids[places - 1 - length] == token_ids[-1 - length]]
        if not len(places):
            return lengths
    return np.minimum(_matched_in_one_pass(token_ids), limit)


def _matched_in_one_pass(token_ids: Ids) -> Ids:
    """As `matched` without a limit, in time that grows with the tokens alone: the Z function of the reversed text."""
    text = token_ids[::-1].tolist()
    lengths = [0] * len(text)
    first = end = 0  # text[first:end] repeats the beginning, and ends as late as any that is known
    for place in range(1, len(text)):
        length = min(lengths[place - first], end - place) if place < end else 0
        if place + length >= end:
            while place + length < len(text) and text[length] == text[place + length]:
                length += 1
            first, end = place, place + length
        lengths[place] = length
    return np.array([0, *lengths[:0:-1]], np.int64)


def completing(token_ids: Ids, size: int) -> Ids:
    """The tokens, ascending, with which the text would have `size` tokens in a row that it has already."""
    return np.unique(token_ids[matched(token_ids, size - 1) >= size - 1])


def dry(
    token_ids: Sequence[int], *, multiplier: float, base: float, allowed_length: int, last_n: int, breakers: Breakers
) -> tuple[Ids, Float64]:
    """DRY's penalties after `token_ids`: the tokens that would go on with a repetition, and what each loses.

    As llama.cpp defines it: of the last `last_n` tokens (-1: all), a token that would lengthen a repetition of n tokens
    loses multiplier * base^(n - allowed_length), n being the longest at least allowed_length. A power above the largest
    float32 counts as that.
    """
    nothing = np.zeros(0, np.int64), np.zeros(0)
    window = token_ids if last_n < 0 else token_ids[max(0, len(token_ids) - last_n) :]
    if len(window) <= allowed_length:
        return nothing
    ids = np.array(window, np.int64)
    lengths = matched(ids, allowed_length + _enough(base, len(ids)))
    longest = int(lengths.max())
    free = breakers.num_after(window, longest) if longest >= allowed_length else 0
    if free < allowed_length:
        return nothing
    lengths = np.minimum(lengths, free)
    lengths[0] = -1  # nothing stands before the first token
    going_on = lengths >= allowed_length
    found, index = np.unique(ids[going_on], return_inverse=True)
    extra = np.zeros(len(found), np.int64)
    np.maximum.at(extra, index, lengths[going_on] - allowed_length)
    penalised = np.array([not breakers.within(token_id) for token_id in found.tolist()], np.bool_)
    found, extra = found[penalised], extra[penalised]
    if not len(found):
        return nothing
    with np.errstate(over="ignore"):  # products in a row, which every machine rounds alike, unlike pow
        powers = np.cumprod(np.concatenate(([1.0], np.full(int(extra.max()), base))))
    return found, multiplier * np.minimum(powers, _LARGEST)[extra]


def _enough(base: float, most: int) -> int:
    """A power of `base` with this exponent, or with `most`, is as large as any that counts."""
    exponent, power = 1, base
    while exponent < most and power < _LARGEST:
        exponent, power = 2 * exponent, power * power
    return min(exponent, most)
