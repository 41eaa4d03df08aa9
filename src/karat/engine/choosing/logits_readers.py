"""Readers of a sequence's logits: the interface, and the reader that writes them and generates nothing."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from karat.engine.scheduling.sequence import Sequence


class Reader(Protocol):
    """Receives a sequence's logits. Rows [positions, vocab] are of consecutive positions and valid during the call."""

    sequence: Sequence

    def read_prompt(self, first: int, rows: NDArray[np.floating]) -> None:
        """Logits of prompt positions from `first` on, except the last one's. Each position comes once."""

    def read_last(self, row: NDArray[np.floating]) -> bool:
        """Logits [vocab] of the last token so far. Appends the next token, or returns True: the sequence ends."""

    def fail(self, error: Exception) -> None:
        """The sequence ends with an error: its numbers must not be used, or reading them failed."""

    def recover(self) -> bool:
        """Repair the state after an interrupt. Returns True if the sequence ends; else it is computed anew."""


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

    def read_prompt(self, first: int, rows: NDArray[np.floating]) -> None:
        self.target[first : first + len(rows)] = rows

    def read_last(self, row: NDArray[np.floating]) -> bool:
        last = len(self.sequence.token_ids) - 1
        self.target[last : last + 1] = row[np.newaxis]
        self.done = True
        return True

    def fail(self, error: Exception) -> None:
        self.error = error
        self.done = True

    def recover(self) -> bool:
        return self.done
