"""Readers of a sequence's logits: the interface, and the reader that writes them and generates nothing."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from karat.engine.scheduling.sequence import Sequence


class Reader(Protocol):
    """Receives a sequence's logits."""

    sequence: Sequence

    @property
    def done(self) -> bool:
        """Whether the sequence ends."""

    def read(self, first: int, rows: NDArray[np.floating]) -> int:
        """Logits [positions, vocab] after the tokens from position `first` on; they are valid during the call.

        Returns how many rows were taken, at least one. The tokens of the others are not accepted: they leave the cache,
        and the reader may put other tokens in their place (`token_ids` up to the last row that it takes stay). Each
        position is taken once. With the row of the last token the sequence gets more tokens, or it ends.
        """

    def fail(self, error: Exception) -> None:
        """The sequence ends with an error: its numbers must not be used, or reading them failed."""

    def recover(self) -> None:
        """Repair the state after an interrupt. Unless it is `done`, the sequence is computed anew."""


class LogitsTarget(Protocol):
    """Receives the logits [tokens, vocab] of a text: an array, or an object that keeps less of them."""

    def __setitem__(self, positions: slice, rows: NDArray[np.floating], /) -> None:
        """Rows [positions, vocab] are valid during the call. They come in order; after an interrupt some come again."""


class LogitsReader:
    """Writes the logits of every position of a text; generates nothing. When `done`, `error` is None or the cause."""

    def __init__(self, sequence: Sequence, target: LogitsTarget) -> None:
        self.sequence = sequence
        self.target = target
        self.done = False
        self.error: Exception | None = None

    def read(self, first: int, rows: NDArray[np.floating]) -> int:
        stop = first + len(rows)
        self.target[first:stop] = rows
        self.done = stop == len(self.sequence.token_ids)
        return len(rows)

    def fail(self, error: Exception) -> None:
        self.error = error
        self.done = True

    def recover(self) -> None:
        """Nothing: rows that were not taken come again."""
