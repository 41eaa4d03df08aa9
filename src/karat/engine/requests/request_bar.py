"""RequestBar: the progress of a call of `LLM.generate` or `LLM.chat`, drawn on stderr."""

import sys
from time import monotonic
from typing import TYPE_CHECKING

from karat.engine.requests.request_updates import RequestUpdate

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_UNASKED_AFTER_S = 1.0


class RequestBar:
    """Draws finished requests, tokens, tokens a second and the remaining time, if `shown`.

    With `shown` None it does so where stderr is a terminal, for a call that takes more than a second, and is cleared in
    the end.
    """

    def __init__(self, num_requests: int, *, shown: bool | None) -> None:
        self._start = monotonic()
        self._num_requests = num_requests
        self._num_ended = self._num_tokens = 0
        self._bar: tuple[Progress, TaskID] | None = None
        self._waits = shown is None and sys.stderr.isatty()
        if shown:
            self._open(clears=False)

    def _open(self, *, clears: bool) -> None:
        from rich import progress as columns
        from rich.console import Console

        progress = columns.Progress(
            columns.MofNCompleteColumn(),
            columns.TextColumn("requests"),
            columns.BarColumn(),
            columns.TextColumn("{task.fields[tokens]}"),
            columns.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=clears,
        )
        self._bar = progress, progress.add_task("", total=self._num_requests, tokens="")
        progress.start()

    def count(self, update: RequestUpdate) -> None:
        """Count one update of a request."""
        self._num_ended += update.ended
        self._num_tokens += sum(len(chunk.token_ids) for chunk in update.chunks)

    def draw(self) -> None:
        """Draw what was counted. Called after each step."""
        seconds = monotonic() - self._start
        if self._waits and seconds > _UNASKED_AFTER_S:
            self._waits = False
            self._open(clears=True)
        if self._bar is None:
            return
        progress, task = self._bar
        tokens = f"{self._num_tokens} tokens ({self._num_tokens / max(seconds, 1e-9):.1f}/s)"
        progress.update(task, completed=self._num_ended, tokens=tokens)

    def close(self) -> None:
        """Stop drawing. A bar that was asked for stays as it is."""
        if self._bar is not None:
            self._bar[0].stop()
