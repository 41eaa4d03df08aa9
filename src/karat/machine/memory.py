"""Memory: the total, and what is available. `root` contains proc and sys."""

import os
import re
from pathlib import Path

from karat.machine.control_groups import memory_left, memory_limit
from karat.machine.files import read_text

_ROOT = Path("/")


def available_bytes(root: Path = _ROOT) -> int:
    """Bytes of memory that can still be taken: Linux's MemAvailable, or less where a control group limits it.

    On systems without MemAvailable (macOS, some sandboxes), half of the physical memory.
    """
    stated = re.search(r"^MemAvailable:\s+(\d+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    available = int(stated[1]) * 1024 if stated else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    left = memory_left(root)
    return max(available if left is None else min(available, left), 0)


def memory_bytes(root: Path = _ROOT) -> int | None:
    """Bytes of memory that this process may take: the machine's, or less where a control group limits it."""
    total = re.search(r"^MemTotal:\s*(\d+) kB", read_text(root / "proc/meminfo"), re.MULTILINE)
    limits = [int(total[1]) * 1024] if total else []
    if (limit := memory_limit(root)) is not None:
        limits.append(limit)
    if not limits and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)
