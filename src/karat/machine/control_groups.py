"""Limits of Linux control groups: the tightest one of this process's group and of its parents."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from karat.machine.files import read_text

# Version of control groups: (file of the limit, file of the usage, prefix of sums over subgroups in memory.stat).
_MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: ("memory.max", "memory.current", ""),
}
_NO_LIMIT = 2**62  # bytes; a limit from here on means none


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The granted processor time, in CPUs; None without a limit. `root` contains proc and sys, here and below."""
    quotas = []
    for folder, version in _folders("cpu", root):
        if version == 2:
            quota, _, period = read_text(folder / "cpu.max").partition(" ")
        else:
            quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):  # "max" and -1 are no limit
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit(root: Path) -> int | None:
    """The memory limit in bytes; None without a limit."""
    return min((limit for _, _, limit in _memory_limits(root)), default=None)


def memory_left(root: Path) -> int | None:
    """Bytes that can still be taken, cached files included, as the kernel can evict them; None without a limit."""
    return min((limit - _taken(folder, version) for folder, version, limit in _memory_limits(root)), default=None)


def _memory_limits(root: Path) -> Iterator[tuple[Path, int, int]]:
    """Folder, version and bytes of each group with a limit. Version 1 states a number near 2^63 for none."""
    for folder, version in _folders("memory", root):
        limit = read_text(folder / _MEMORY_FILES[version][0])
        if limit.isdecimal() and int(limit) < _NO_LIMIT:
            yield folder, version, int(limit)


def _taken(folder: Path, version: int) -> int:
    """Bytes that a group has taken, cached files excluded. The kernel needs some 30 ms for this sum."""
    _, usage, prefix = _MEMORY_FILES[version]
    lines = (line.split() for line in read_text(folder / "memory.stat").splitlines())
    stat = {words[0]: int(words[1]) for words in lines if len(words) == 2}
    files = stat.get(f"{prefix}active_file", 0) + stat.get(f"{prefix}inactive_file", 0)
    return int(read_text(folder / usage) or 0) - files


def _folders(controller: str, root: Path) -> Iterator[tuple[Path, int]]:
    """Folders that may contain limits of a controller, each with the version of its interface."""
    top = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines() or ["0::/", f"1:{controller}:/"]:
        _, controllers, group = line.split(":", 2)
        # A container may see its own group as the root, whatever its name: folders that do not exist are passed over.
        inside = PurePosixPath(group.lstrip("/"))
        for around in (inside, *inside.parents):
            if not controllers:  # version 2, one tree of groups
                yield top / around, 2
            elif controller in controllers.split(","):
                yield top / controller / around, 1
