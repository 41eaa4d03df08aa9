"""Facts about this machine that decide how fast Karat can be here: processor, cores it may use, memory.

Each function reads the files of Linux below `root` and says None (or nothing) where a system has no such file.
"""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from karat.dist.control_groups import cpu_quota, memory_limit

# Instruction sets that kernels use or may come to use, of all that a processor lists.
_FEATURES = (
    "sse4_2 avx f16c fma avx2 avx_vnni avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 avx512_fp16 "
    "amx_tile amx_int8 amx_bf16 asimd asimdhp asimddp i8mm bf16 sve sve2 sme"
).split()
_ROOT = Path("/")


def cpu_model(root: Path = _ROOT) -> str | None:
    if match := re.search(r"^(?:model name|Model)\s*:\s*(.+)$", _text(root / "proc/cpuinfo"), re.MULTILINE):
        return match[1]
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    return platform.processor() or None


def cpu_features(root: Path = _ROOT) -> list[str]:
    """The instruction sets above that the operating system lets programs use."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    listed = set(match[1].split()) if match else set()
    return [feature for feature in _FEATURES if feature in listed]


def num_usable_cores() -> int | None:
    """Cores that the scheduler may put this process on (taskset, cpusets)."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()


def cgroup_cores(root: Path = _ROOT) -> float | None:
    """Processor time that control groups grant, in cores; None if they set no limit."""
    return cpu_quota(root)


def memory_bytes(root: Path = _ROOT) -> int | None:
    """Memory that this process may take: the machine's, or less where a control group says so."""
    total = re.search(r"^MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    limits = [int(total[1]) * 1024] if total else []
    if (limit := memory_limit(root)) is not None:
        limits.append(limit)
    if not limits and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
