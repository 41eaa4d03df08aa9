"""A person at a terminal: types, presses Ctrl-C, and waits for what appears."""

import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cli.conftest import COMMAND, environment

CTRL_C, CTRL_D = "\x03", "\x04"
_STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
DEADLINE_S = 600


class PseudoTerminal:
    """Runs `karat *args` with the terminal as its controlling one, so that Ctrl-C is a signal as in real life."""

    def __init__(self, *args: str, stdout: Path | None = None, echo: bool = False, **variables: str) -> None:
        self.raw = ""
        self._seen = 0
        self._master, slave = pty.openpty()
        attributes = termios.tcgetattr(slave)
        if not echo:
            attributes[3] &= ~termios.ECHO  # what appears is then only what the program writes
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        out = stdout.open("w") if stdout else None
        self._process = subprocess.Popen(
            [*COMMAND, *args],
            stdin=slave,
            stdout=out or slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=environment(TERM="xterm", **variables),
        )
        os.close(slave)
        if out:
            out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    @property
    def pid(self) -> int:
        return self._process.pid

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt_when_idle(self) -> None:
        """Ctrl-C at the prompt, as soon as the program waits there: Python loses one that comes just before that."""
        stat = Path(f"/proc/{self._process.pid}/stat")
        deadline = time.monotonic() + DEADLINE_S
        while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < deadline, "the program is never idle"
        self.type(CTRL_C)

    def wait_for(self, text: str) -> str:
        """Everything that appeared since the last wait, up to `text`, without styles and carriage returns."""
        deadline = time.monotonic() + DEADLINE_S
        while (end := self._screen().find(text, self._seen)) < 0:
            left = deadline - time.monotonic()
            if not self._read(left):
                raise AssertionError(f"{text!r} did not appear in {self._screen()[self._seen :]!r}")
        start, self._seen = self._seen, end + len(text)
        return self._screen()[start : self._seen]

    def wait_for_end(self) -> tuple[int, str]:
        """The exit code, and everything that appeared since the last wait."""
        while self._read(DEADLINE_S):
            pass
        return self._process.wait(DEADLINE_S), self._screen()[self._seen :]

    def _screen(self) -> str:
        return _STYLE.sub("", self.raw).replace("\r", "")

    def _read(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(timeout_s, 0))
        try:
            content = os.read(self._master, 65536) if ready else b""
        except OSError:  # the other side is closed
            content = b""
        self.raw += content.decode(errors="replace")
        return bool(content)
