"""StopMatcher: stop strings in a stream of text, independent of how the stream is cut into pieces."""

from collections.abc import Sequence
from typing import NamedTuple

from karat.errors import RequestError


class StopResult(NamedTuple):
    """The result of a piece of text: the text to emit now, and the matched stop string or None."""

    text_to_emit: str
    matched: str | None


class StopMatcher:
    """Finds the first of `stops` that is completed in a stream.

    The text before the match is emitted, and the stop string itself if `include_stop`. Text is held back only while it
    may be the beginning of a stop string. The match whose last character comes first wins, even over one that began
    earlier; of two that end together, the longer wins. So the result does not depend on how the stream is cut.

    Raises `RequestError` for an empty stop string. A character costs a few steps for each stop string, of any length.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        if "" in stops:
            raise RequestError("a stop string is empty; expected at least one character; leave it out")
        self._stops = [_Prefix(stop) for stop in sorted(set(stops), key=lambda stop: (-len(stop), stop))]
        self._include_stop = include_stop
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> StopResult:
        """Take the next piece. After a match nothing more is emitted."""
        if self._matched is not None:
            return StopResult("", self._matched)
        stream = self._held + text
        for index, char in enumerate(text, start=len(self._held)):
            # Every stop string advances before the longest completed one is chosen.
            completed = [prefix.stop for prefix in self._stops if prefix.advance(char)]
            if completed:
                self._matched = completed[0]
                self._held = ""
                start = index + 1 - len(self._matched)
                return StopResult(stream[: index + 1 if self._include_stop else start], self._matched)
        num_held = max((prefix.length for prefix in self._stops), default=0)
        self._held = stream[len(stream) - num_held :]
        return StopResult(stream[: len(stream) - num_held], None)

    def finish(self) -> str:
        """The text that is still held back at the end of a stream without a match."""
        held, self._held = self._held, ""
        return held


class _Prefix:
    """The length of the longest prefix of `stop` that the stream ends with (Knuth, Morris and Pratt)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        # borders[n]: length of the longest proper prefix of stop[:n] that is also its suffix.
        self._borders = [0, 0]
        for char in stop[1:]:
            self._borders.append(self._extended(self._borders[-1], char))

    def advance(self, char: str) -> bool:
        """Whether `char` completes the stop string."""
        self.length = self._extended(self.length, char)
        return self.length == len(self.stop)

    def _extended(self, length: int, char: str) -> int:
        while length and self.stop[length] != char:
            length = self._borders[length]
        return length + (self.stop[length] == char)
