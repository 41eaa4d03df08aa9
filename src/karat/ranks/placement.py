"""The cores of each rank: neighbours, so that a rank's threads and memory stay on one NUMA node."""

import os
from pathlib import Path

from karat.machine.cores import core_of, nodes_of_cpus

_ROOT = Path("/")


def cores_of_ranks(size: int, threads: int, root: Path = _ROOT) -> list[frozenset[int]] | None:
    """The CPUs of each rank; None where the system should place them.

    The physical cores that this process may use are divided evenly, in the order of their NUMA nodes. A rank gets all
    hardware threads of its cores. None if `size` ranks of `threads` threads need more cores than there are, or if the
    system cannot pin threads (macOS). `root` contains sys.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity is None:
        return None
    cpus = sorted(affinity(0))
    nodes = nodes_of_cpus(root)
    cores: dict[str, list[int]] = {}
    for cpu in sorted(cpus, key=lambda cpu: (nodes.get(cpu, 0), cpu)):
        cores.setdefault(core_of(cpu, root), []).append(cpu)
    if len(cores) < size * threads:
        return None
    listed = list(cores.values())
    ends = [len(listed) * (rank + 1) // size for rank in range(size)]
    return [
        frozenset(cpu for core in listed[start:stop] for cpu in core)
        for start, stop in zip([0, *ends[:-1]], ends, strict=True)
    ]
