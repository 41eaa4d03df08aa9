"""Progress, for somebody who waits at a terminal."""

import shutil
import sys

from karat.cli.terminal import is_terminal, note


class Progress:
    """Progress in one line of a terminal, which the next line replaces; nothing if there is no terminal.

    Call `clear` before any other output.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._shows = not quiet and is_terminal(sys.stderr)
        self._line = ""  # on the screen now

    def __call__(self, text: str) -> None:
        line = f"{text} …"[: shutil.get_terminal_size().columns - 1] if self._shows else ""
        if line != self._line:
            self.clear()
            note(line, end="")
            self._line = line

    def clear(self) -> None:
        if self._line:
            print(f"\r{' ' * len(self._line)}\r", end="", file=sys.stderr, flush=True)
            self._line = ""
