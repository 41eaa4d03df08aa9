"""How many threads are worth having: the physical cores that this process may use."""

import math
import os
from pathlib import Path, PurePosixPath

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
    unified, divided = root / "sys/fs/cgroup", root / "sys/fs/cgroup/cpu"
    quotas = [_NO_QUOTA]
    for line in read_text(root / "proc/self/cgroup").splitlines() or ["0::/", "1:cpu:/"]:
        _, controllers, group = line.split(":", 2)
        # A container may see its own group as the top one, whatever the name says: what is not there is passed over.
        inside = PurePosixPath(group.lstrip("/"))
        for around in (inside, *inside.parents):
            if not controllers:  # version 2, one tree of groups
                quotas.append(_cpus(*read_text(unified / around / "cpu.max").split()))
            elif "cpu" in controllers.split(","):
                folder = divided / around
                quotas.append(_cpus(read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")))
    return min(quotas)


def _cpus(quota: str = "", period: str = "") -> int:
    """Microseconds of a period in which the group may run, as whole CPUs; "max" and -1 are no quota, as is nothing."""
    if not (quota.isdecimal() and period.isdecimal() and int(quota) and int(period)):
        return _NO_QUOTA
    return math.ceil(int(quota) / int(period))
