"""Progress, for somebody who waits at a terminal."""

import shutil
import sys

from karat.cli.terminal import is_terminal, note


class Progress:
    """Progress in one line of a terminal, which the next line replaces; nothing if there is no terminal.

    With `lines` each text is a line of its own where there is no terminal: for work of minutes whose output is piped.
    Call `clear` before any other output.
    """

    def __init__(self, *, quiet: bool, lines: bool = False) -> None:
        self._shows = not quiet and is_terminal(sys.stderr)
        self._writes = lines and not quiet and not self._shows
        self._line = ""  # on the screen now

    @property
    def is_live(self) -> bool:
        """Whether each text replaces the one before, on a terminal."""
        return self._shows

    def __call__(self, text: str) -> None:
        if self._writes and text:
            note(text)
        line = f"{text} …"[: shutil.get_terminal_size().columns - 1] if self._shows else ""
        if line != self._line:
            self.clear()
            note(line, end="")
            self._line = line

    def clear(self) -> None:
        if self._line:
            print(f"\r{' ' * len(self._line)}\r", end="", file=sys.stderr, flush=True)
            self._line = ""
