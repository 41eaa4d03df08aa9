"""What is going on, for somebody who waits at a terminal."""

import shutil
import sys

from karat.cli.terminal import is_terminal, note


class Progress:
    """What is going on, in one line of a terminal that the next one replaces; elsewhere nothing.

    `clear` before anything else is written.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._shows = not quiet and is_terminal(sys.stderr)
        self._line = ""  # that is there

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
