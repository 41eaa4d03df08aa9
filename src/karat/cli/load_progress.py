"""The bar of a load: requests so far, requests and tokens a second, and when this run ends at the rate so far."""

import sys
from time import perf_counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from karat.bench.load.asking import AskedRecord
from karat.cli.terminal import is_terminal


class LoadProgress:
    """A bar on stderr, for somebody at a terminal. Each run has its own: runs of other loads say nothing about it.

    The end is stated once a tenth of the requests have ended, and two of them: `so many left, at so many a second since
    the first was sent`.
    """

    def __init__(self, *, quiet: bool) -> None:
        shows = not quiet and is_terminal(sys.stderr)
        self._bar: Progress | None = None
        if shows:
            rates = TextColumn("{task.fields[rates]}")
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rates, TimeElapsedColumn())
            # Four pictures a second: drawing takes time from the servers.
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
        self._task: TaskID | None = None
        self._begun = 0.0
        self._number = self._ended = self._tokens = 0

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, text: str, number: int) -> None:
        self._begun, self._number, self._ended, self._tokens = perf_counter(), number, 0, 0
        if self._bar is None:
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(text, total=number, rates="")

    def ended(self, record: AskedRecord) -> None:
        self._ended += 1
        self._tokens += record.output_tokens
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._ended, rates=self._rates())

    def _rates(self) -> str:
        seconds = perf_counter() - self._begun
        return rates(self._ended, self._number, self._tokens, seconds)


def rates(num_ended: int, number: int, num_tokens: int, seconds: float) -> str:
    """Requests and tokens a second, and the seconds left where that can be said."""
    text = f"{num_ended / seconds:.2f} req/s {num_tokens / seconds:.0f} tok/s"
    if num_ended < max(2, number / 10) or num_ended == number:
        return text
    return f"{text}, {seconds / num_ended * (number - num_ended):.0f} s left"
