"""Perplexity of a text under a model, in sliding windows: every token but the first is scored once."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.engine.choosing.logits_readers import LogitsTarget
from karat.errors import UsageError

WriteLogits = Callable[[Sequence[int], LogitsTarget], None]  # all logits [tokens, vocab] of a text, to a target

ROWS_AT_ONCE = 16  # of logits that are looked at in float64


@dataclass(frozen=True, slots=True)
class Score:
    """The state after a window: tokens scored so far, tokens to score in all, and the sum of -log probability."""

    num_scored: int
    num_total: int
    nats: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats / self.num_scored)


def windows(num_tokens: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, first scored) of each window of at most `window` tokens; it scores those after the last window."""
    scored = 1
    begin = 0
    while scored < num_tokens:
        end = min(begin + window, num_tokens)
        yield begin, end, scored
        scored = end
        begin = min(begin + stride, max(0, num_tokens - window)) if end < num_tokens else num_tokens


class _Surprises:
    """A target of logits that keeps, for each position from `first` on, -log of the next token's probability."""

    def __init__(self, token_ids: Sequence[int], first: int) -> None:
        self._targets = np.asarray(token_ids[first + 1 :])
        self._first = first
        self.nats = np.empty(len(self._targets))

    def __setitem__(self, positions: slice, logits: NDArray[np.floating], /) -> None:
        begin = positions.start - self._first  # of the targets; the last position has none
        for place in range(max(begin, 0), min(begin + len(logits), len(self._targets)), ROWS_AT_ONCE):
            chosen = self._targets[place : min(place + ROWS_AT_ONCE, begin + len(logits))]
            rows = logits[place - begin :][: len(chosen)].astype(np.float64)
            largest = rows.max(axis=1)
            log_sum = largest + np.log(np.exp(rows - largest[:, None]).sum(axis=1))
            self.nats[place : place + len(chosen)] = log_sum - rows[np.arange(len(rows)), chosen]


def perplexity(write_logits: WriteLogits, token_ids: Sequence[int], *, window: int, stride: int) -> Iterator[Score]:
    """Score `token_ids`; yields a Score after each window. A token is scored with at least window - stride tokens
    before it, or with all that are before it.

    Raises UsageError for fewer than two tokens, or a stride that is not 1 … window - 1.
    """
    if len(token_ids) < 2:
        raise UsageError(f"{len(token_ids)} tokens: perplexity needs at least two; give a longer text")
    if not 1 <= stride < window:
        raise UsageError(f"a stride of {stride} in windows of {window}: expected 1 to {window - 1}")
    nats, count = 0.0, 0
    for begin, end, first in windows(len(token_ids), window, stride):
        surprises = _Surprises(token_ids[begin:end], first - begin - 1)
        write_logits(token_ids[begin:end], surprises)
        nats += float(surprises.nats.sum())
        count += end - first
        yield Score(count, len(token_ids) - 1, nats)
