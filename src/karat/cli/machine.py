"""Facts about this machine that decide how fast Karat can be here: processor, cores it may use, memory.

Each function reads the files of Linux below `root` and says None (or nothing) where a system has no such file.
"""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

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
    limits = []
    for text in _cgroup_files(root, "", "cpu.max"):
        quota, _, period = text.partition(" ")
        if quota != "max":
            limits.append(int(quota) / int(period or 100_000))
    quotas = _cgroup_files(root, "cpu", "cpu.cfs_quota_us")
    periods = _cgroup_files(root, "cpu", "cpu.cfs_period_us")
    limits += [int(quota) / int(period) for quota, period in zip(quotas, periods, strict=True) if int(quota) > 0]
    return min(limits, default=None)


def memory_bytes(root: Path = _ROOT) -> int | None:
    """Memory that this process may take: the machine's, or less where a control group says so."""
    total = re.search(r"^MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    limits = [int(total[1]) * 1024] if total else []
    for text in _cgroup_files(root, "", "memory.max") + _cgroup_files(root, "memory", "memory.limit_in_bytes"):
        if text != "max":
            limits.append(int(text))
    if not limits and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def _cgroup_files(root: Path, controller: str, name: str) -> list[str]:
    """The file `name` of this process's control group and of all above it; controller "" is version 2's tree."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
            here = top / path.lstrip("/")
            folders = [here, *here.parents[: len(here.relative_to(top).parts)]]
            return [text for folder in folders if (text := _text(folder / name).strip())]
    return []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
