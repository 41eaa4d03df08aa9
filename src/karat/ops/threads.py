"""How many threads are worth having: the physical cores that this process may use."""

import math
import os
from pathlib import Path


def num_physical_cores(root: Path = Path("/")) -> int:
    """Physical cores of the CPUs that the process may run on, at most what a container's quota pays for; at least 1.

    Two hardware threads of a core share its arithmetic, so one of them counts. `root` holds sys. Where the system does
    not say (macOS), all CPUs.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = affinity(0) if affinity else range(os.cpu_count() or 1)
    cores = {_siblings(cpu, root) for cpu in cpus}
    return max(1, min(len(cores), _quota(root)))


def _siblings(cpu: int, root: Path) -> str:
    """The hardware threads of the CPU's core, as one name of the core."""
    path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return path.read_text().strip() if path.exists() else str(cpu)


def _quota(root: Path) -> int:
    """CPUs that a control group's quota amounts to, rounded up."""
    v2, v1 = root / "sys/fs/cgroup/cpu.max", root / "sys/fs/cgroup/cpu"
    if v2.exists():
        quota, period = v2.read_text().split()
    elif (v1 / "cpu.cfs_quota_us").exists():
        quota, period = (v1 / "cpu.cfs_quota_us").read_text(), (v1 / "cpu.cfs_period_us").read_text()
    else:
        return 1 << 30
    return 1 << 30 if quota.strip() in ("max", "-1") else math.ceil(int(quota) / int(period))
