"""How many threads are worth having: the physical cores that this process may use."""

import math
import os
from pathlib import Path

from karat.dist.control_groups import cpu_quota
from karat.dist.placement import core_of


def num_physical_cores(root: Path = Path("/")) -> int:
    """Physical cores of the CPUs that the process may run on, at most a container's quota, rounded up; at least 1.

    Two hardware threads of a core share its arithmetic, so one of them counts. `root` holds proc and sys. Where the
    system does not say (macOS), all CPUs.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = affinity(0) if affinity else range(os.cpu_count() or 1)
    cores = len({core_of(cpu, root) for cpu in cpus})
    quota = cpu_quota(root)
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))
