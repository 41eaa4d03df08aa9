"""Perplexity of a text under a model, in windows that slide: every token but the first is scored once."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.errors import UsageError

Logits = Callable[[Sequence[int]], NDArray[np.floating]]  # [tokens, vocab] of a text


@dataclass(frozen=True, slots=True)
class Score:
    """What is known after a window: tokens scored so far of all that will be, and their summed -log probability."""

    num_scored: int
    num_total: int
    nats: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats / self.num_scored)


def windows(num_tokens: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, first scored): windows of at most `window` tokens, each scoring what the last one did not reach."""
    scored = 1
    begin = 0
    while scored < num_tokens:
        end = min(begin + window, num_tokens)
        yield begin, end, scored
        scored = end
        begin = min(begin + stride, max(0, num_tokens - window)) if end < num_tokens else num_tokens


def perplexity(logits: Logits, token_ids: Sequence[int], *, window: int, stride: int) -> Iterator[Score]:
    """Score `token_ids`, yielding after each window. A token has at least window - stride tokens before it, if any are.

    Raises UsageError for fewer than two tokens, or a stride that is not 1 … window - 1.
    """
    if len(token_ids) < 2:
        raise UsageError(f"{len(token_ids)} tokens: perplexity needs at least two; give a longer text")
    if not 1 <= stride < window:
        raise UsageError(f"a stride of {stride} in windows of {window}: expected 1 to {window - 1}")
    nats, count = 0.0, 0
    for begin, end, first in windows(len(token_ids), window, stride):
        rows = logits(token_ids[begin:end])[first - begin - 1 : end - begin - 1].astype(np.float64)  # [scored, vocab]
        targets = np.asarray(token_ids[first:end])
        largest = rows.max(axis=1)
        log_sum = largest + np.log(np.exp(rows - largest[:, None]).sum(axis=1))
        nats += float((log_sum - rows[np.arange(len(rows)), targets]).sum())
        count += len(rows)
        yield Score(count, len(token_ids) - 1, nats)
