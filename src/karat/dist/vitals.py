"""What the system says of a process: whether it is stopped, and whether it has done anything lately."""

import time
from pathlib import Path

_PROC = Path("/proc")


class Vitals:
    """Looked at every now and then; the figures hold as of the last look.

    A process that waits for a core or for a disk is at work, however long that takes. Where the system has no /proc,
    nothing is ever reported.
    """

    def __init__(self, process_id: int, root: Path = _PROC) -> None:
        self._folder = root / str(process_id)
        self._cpu_time = -1
        self._last_stir = self._last_run = time.monotonic()
        self.idle_s = 0.0
        self.stopped_s = 0.0

    def look(self) -> None:
        now = time.monotonic()
        states, cpu_time = set(), 0
        for stat in self._folder.glob("task/*/stat"):
            try:
                fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # the thread has ended
            states.add(fields[0])
            cpu_time += int(fields[11]) + int(fields[12])  # user and system time
        if not states & {"T", "t"}:
            self._last_run = now
        if states & {"R", "D"} or cpu_time != self._cpu_time or not states:
            self._last_stir = now
        self._cpu_time = cpu_time
        self.idle_s = now - self._last_stir
        self.stopped_s = now - self._last_run
