"""Which cores each rank gets: neighbours, so that a rank's threads and memory stay on one NUMA node."""

import os
import re
from pathlib import Path

_ROOT = Path("/")


def cores_of_ranks(size: int, threads: int, root: Path = _ROOT) -> list[frozenset[int]] | None:
    """The CPUs of each rank, or None where ranks are better left to the system.

    Physical cores that this process may use are shared out evenly, in the order of their NUMA nodes; a rank gets all
    hardware threads of its cores. None where `size` ranks of `threads` threads are more than there are cores, or where
    the system does not pin (macOS). `root` holds sys.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity is None:
        return None
    cpus = sorted(affinity(0))
    nodes = _nodes(root)
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


def core_of(cpu: int, root: Path) -> str:
    """The hardware threads of the CPU's core, as one name of the core."""
    return read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)


def _nodes(root: Path) -> dict[int, int]:
    """The NUMA node of each CPU; empty where the system does not say."""
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


def read_text(path: Path) -> str:
    """A file of the system without the last newline; empty where it is not there or may not be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
