"""Readers of a sequence's logits: the interface, and the reader that writes them and generates nothing."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from karat.engine.sequence import Sequence


class Reader(Protocol):
    """Who wants a sequence's logits. Rows [positions, vocab] are of consecutive positions, and lent for the call."""

    sequence: Sequence

    def read_prompt(self, first: int, rows: NDArray[np.floating]) -> None:
        """Logits of prompt positions from `first` on, the last of the prompt excepted; each comes once."""

    def read_last(self, row: NDArray[np.floating]) -> bool:
        """Logits [vocab] of the last token so far; appends the next one, or returns True: nothing more is wanted."""

    def fail(self, error: Exception) -> None:
        """The sequence ends here: its numbers are not to be used, or reading them failed."""

    def recover(self) -> bool:
        """Make whole what an interrupt left half done; True if nothing more is wanted. The sequence begins anew."""


class LogitsTarget(Protocol):
    """What takes the logits [tokens, vocab] of a text as an array does, and is one, or keeps less of them."""

    def __setitem__(self, positions: slice, rows: NDArray[np.floating], /) -> None:
        """Rows [positions, vocab] are lent for the call. They come in order; after an interrupt some come again."""


class LogitsReader:
    """Writes the logits of every position of a text; generates nothing. When `done`, `error` says if it failed."""

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
