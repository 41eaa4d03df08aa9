"""A bar on stderr while a large model is loaded."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from karat.cli.terminal import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LEAST_BYTES = 256 << 20  # a smaller model is loaded before anybody looks


class LoadingBar:
    """A callback for the loaded bytes and the bytes of all weights; the bar is removed at the end of the `with`.

    Nothing is shown for a small model, or if `stream` is no terminal.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        if total < LEAST_BYTES or not is_terminal(self._stream):
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

            columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._bar = Progress("loading", *columns, console=Console(file=self._stream), transient=True)
            self._task = self._bar.add_task("", total=total)
            self._bar.start()
        assert self._task is not None
        self._bar.update(self._task, completed=done)

    def __enter__(self) -> "LoadingBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
