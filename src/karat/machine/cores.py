"""The cores that this process may use, and their NUMA nodes."""

import math
import os
import re
import sys
from pathlib import Path

from karat.machine.control_groups import cpu_quota
from karat.machine.files import read_text


def num_physical_cores(root: Path = Path("/")) -> int:
    """Physical cores of the CPUs that the process may run on, but not more than a container's quota (rounded up).

    At least 1. The hardware threads of a core share its arithmetic units, so a core counts once. `root` contains proc
    and sys. On systems without this information (macOS), the number of CPUs.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = affinity(0) if affinity else range(os.cpu_count() or 1)
    cores = len({core_of(cpu, root) for cpu in cpus})
    quota = cpu_quota(root)
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def num_usable_cores() -> int | None:
    """The number of CPUs that the scheduler may run this process on (taskset, cpusets)."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()


def core_of(cpu: int, root: Path) -> str:
    """A name of the CPU's core, the same for all its hardware threads."""
    return read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)


def nodes_of_cpus(root: Path) -> dict[int, int]:
    """The NUMA node of each CPU; empty where the system states none."""
    nodes = {}
    for folder in (root / "sys/devices/system/node").glob("node*"):
        if (match := re.fullmatch(r"node(\d+)", folder.name)) is not None:
            for cpu in _listed(read_text(folder / "cpulist")):
                nodes[cpu] = int(match[1])
    return nodes


def _listed(text: str) -> list[int]:
    """The numbers of a list like "0-3,8"."""
    numbers: list[int] = []
    for span in filter(None, text.split(",")):
        first, _, last = span.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
