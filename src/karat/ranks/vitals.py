"""Vitals: whether a process is stopped, is idle, or computes without progress, from the system's figures."""

import os
import time
from pathlib import Path

_PROC = Path("/proc")
_MOST_S = 0.5  # seconds that one look adds at most: if this process was stopped between looks, it saw nothing


class Vitals:
    """Figures of a process in seconds, as of the last `look`.

    idle_s          time in which no thread ran. A process that waits for a core or a disk is not idle.
    stopped_s       time in which it was stopped.
    vain_s          processor time of its busiest thread since its progress counter last changed; on a busy machine
                    this is less than the time that passed.
    longest_vain_s  the largest vain_s so far.

    idle_s and stopped_s grow by the time between two looks, at most half a second: if this process was stopped in
    between, it does not know what happened. Where the system has no /proc, all figures stay 0.
    """

    def __init__(self, process_id: int, root: Path = _PROC) -> None:
        self._folder = root / str(process_id)
        self._cpu_times: dict[str, int] = {}  # of each thread, in ticks
        self._at_progress = (-1, self._cpu_times)
        self._looked = time.monotonic()
        self.idle_s = 0.0
        self.stopped_s = 0.0
        self.vain_s = 0.0
        self.longest_vain_s = 0.0

    def look(self, progress: int = 0) -> None:
        """Update the figures. `progress` is the process's own progress counter."""
        now = time.monotonic()
        states, cpu_times = set(), {}
        for stat in self._folder.glob("task/*/stat"):
            try:
                fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # the thread has ended
            states.add(fields[0])
            cpu_times[stat.parent.name] = int(fields[11]) + int(fields[12])  # user and system time
        seen_s = min(now - self._looked, _MOST_S)
        self._looked = now
        self.stopped_s = self.stopped_s + seen_s if states & {"T", "t"} else 0.0
        stirs = states & {"R", "D"} or cpu_times != self._cpu_times or not states
        self.idle_s = 0.0 if stirs else self.idle_s + seen_s
        self._cpu_times = cpu_times
        if progress != self._at_progress[0]:
            self._at_progress = progress, cpu_times
        before = self._at_progress[1]
        ticks = max((ticks - before.get(thread, 0) for thread, ticks in cpu_times.items()), default=0)
        self.vain_s = ticks / os.sysconf("SC_CLK_TCK")
        self.longest_vain_s = max(self.longest_vain_s, self.vain_s)
