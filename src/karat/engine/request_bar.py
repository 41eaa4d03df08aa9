"""A line on stderr that tells how far a call of `LLM.generate` or `LLM.chat` is."""

import sys
from time import monotonic

from karat.engine.engine import RequestUpdate

_SECONDS_BETWEEN_LINES = 0.1


class RequestBar:
    """Counts requests that are done and tokens that came; written over itself, and ended with a line break."""

    def __init__(self, num_requests: int, *, shown: bool) -> None:
        self._num_requests = num_requests
        self._shown = shown
        self._num_done = self._num_tokens = 0
        self._start = monotonic()
        self._next = self._start

    def count(self, update: RequestUpdate) -> None:
        """One more update of one of the requests."""
        if not self._shown:
            return
        self._num_tokens += sum(len(chunk.token_ids) for chunk in update.chunks)
        self._num_done += update.output is not None
        if monotonic() >= self._next:
            self._next = monotonic() + _SECONDS_BETWEEN_LINES
            self._write("")

    def close(self) -> None:
        """Nothing more comes."""
        if self._shown:
            self._write("\n")

    def _write(self, end: str) -> None:
        rate = self._num_tokens / max(monotonic() - self._start, 1e-9)
        line = f"{self._num_done} of {self._num_requests} requests · {self._num_tokens} tokens ({rate:.1f}/s)"
        sys.stderr.write(f"\r{line:<60}{end}")
        sys.stderr.flush()
