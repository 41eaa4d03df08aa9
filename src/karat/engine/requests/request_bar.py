"""RequestBar: the progress of a call of `LLM.generate` or `LLM.chat`, drawn on stderr."""

from time import monotonic
from typing import TYPE_CHECKING

from karat.engine.requests.request_updates import RequestUpdate

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class RequestBar:
    """Draws finished requests, tokens, tokens a second and the remaining time; nothing unless `shown`."""

    def __init__(self, num_requests: int, *, shown: bool) -> None:
        self._start = monotonic()
        self._num_tokens = 0
        self._bar: tuple[Progress, TaskID] | None = None
        if not shown:
            return
        from rich import progress as columns
        from rich.console import Console

        progress = columns.Progress(
            columns.MofNCompleteColumn(),
            columns.TextColumn("requests"),
            columns.BarColumn(),
            columns.TextColumn("{task.fields[tokens]}"),
            columns.TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._bar = progress, progress.add_task("", total=num_requests, tokens="")
        progress.start()

    def count(self, update: RequestUpdate) -> None:
        """Count one update of a request."""
        if self._bar is None:
            return
        progress, task = self._bar
        self._num_tokens += sum(len(chunk.token_ids) for chunk in update.chunks)
        rate = self._num_tokens / max(monotonic() - self._start, 1e-9)
        tokens = f"{self._num_tokens} tokens ({rate:.1f}/s)"
        progress.update(task, advance=update.ended, tokens=tokens)

    def close(self) -> None:
        """Stop drawing. The bar stays as it is."""
        if self._bar is not None:
            self._bar[0].stop()
