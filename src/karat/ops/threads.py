"""How many threads are worth having: the physical cores that this process may use."""

import math
import os
from pathlib import Path

from karat.dist.control_groups import folders_of_limits
from karat.dist.placement import core_of, read_text

_NO_QUOTA = 1 << 30


def num_physical_cores(root: Path = Path("/")) -> int:
    """Physical cores of the CPUs that the process may run on, at most what a container's quota pays for; at least 1.

    Two hardware threads of a core share its arithmetic, so one of them counts. `root` holds proc and sys. Where the
    system does not say (macOS), all CPUs.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = affinity(0) if affinity else range(os.cpu_count() or 1)
    cores = {core_of(cpu, root) for cpu in cpus}
    return max(1, min(len(cores), _quota(root)))


def _quota(root: Path) -> int:
    """CPUs that the quota of the process' control group amounts to, or of the tightest group around it, rounded up."""
    quotas = [_NO_QUOTA]
    for folder, version in folders_of_limits("cpu", root):
        if version == 2:
            quotas.append(_cpus(*read_text(folder / "cpu.max").split()))
        else:
            quotas.append(_cpus(read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")))
    return min(quotas)


def _cpus(quota: str = "", period: str = "") -> int:
    """Microseconds of a period in which the group may run, as whole CPUs; "max" and -1 are no quota, as is nothing."""
    if not (quota.isdecimal() and period.isdecimal() and int(quota) and int(period)):
        return _NO_QUOTA
    return math.ceil(int(quota) / int(period))
