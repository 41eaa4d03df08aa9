"""A long prompt, computed while somebody waits: its progress, and its end within about a second of Ctrl-C."""

from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

from karat.cli.interrupts import Interrupt
from karat.cli.progress import Progress

if TYPE_CHECKING:
    from karat.engine.requests.request_updates import PromptProgress

_SHOWN_AFTER_S = 0.5


class PromptWatch:
    """A callback that shows the progress of a prompt on a terminal; the end of its `with` clears the line.

    A Ctrl-C that `interrupt` noted raises KeyboardInterrupt, which ends the request.
    """

    def __init__(self, interrupt: Interrupt | None = None, *, quiet: bool = False) -> None:
        self._interrupt = interrupt
        self._progress = Progress(quiet=quiet)
        self._begun = perf_counter()

    def __call__(self, prompt: "PromptProgress") -> None:
        if prompt.num_computed == prompt.num_tokens:
            self._progress.clear()
            return
        if self._interrupt is not None and self._interrupt.requested:
            raise KeyboardInterrupt
        if perf_counter() - self._begun > _SHOWN_AFTER_S:
            self._progress(f"prompt: {prompt.num_computed:,} of {prompt.num_tokens:,} tokens")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.clear()
