"""Where engines are on a cluster: how many a node has, and on a host with several the cores of each: neighbours, so
that its threads and memory stay on one NUMA node.
"""

import os
import socket
from pathlib import Path
from typing import NamedTuple

import ray

from karat.errors import UsageError
from karat.machine.cores import num_physical_cores
from karat.ranks.placement import cores_of_ranks

_ROOT = Path("/")


class Room(NamedTuple):
    """Room for an engine: so many cores of a node of Ray's."""

    node: str
    cores: int


def places(memory: int, *, cores: int | None, most: int | None, spare: int = 0) -> list[Room]:
    """Room for an engine for each `cores` cores of each node, `most` at the most, and no more on a node than its memory
    holds. None: one for a node, with all of its cores but `spare`, one at the least.

    UsageError if there is no room for any.
    """
    found: list[Room] = []
    for node in ray.nodes():
        here = int(node["Resources"].get("CPU", 0)) if node["Alive"] else 0
        each, room = cores or max(here - spare, min(here, 1)), node["Resources"].get("memory", 0)
        number = min(here // each if each else 0, int(room // memory) if memory else here)
        found += [Room(node["NodeID"], each)] * number
    if not found:
        size = f" and {memory / 1e9:.2g} GB of memory" if memory else ""
        raise UsageError(f"no node of the cluster has {cores or 1} cores{size}; say fewer with --cores-each")
    return found[:most]


def cpus_of_engine(number: int, cores: int, node_cpus: float, root: Path = _ROOT) -> frozenset[int] | None:
    """The CPUs of engine `number` of a host, of engines with so many cores each; None where the system should place it.

    The host's physical cores are divided evenly, in the order of their NUMA nodes. None where one engine has the whole
    host, where there are more engines than that, and where Ray counts less than the host has (`node_cpus`): then
    another node of Ray's, or somebody else, has the rest. `root` contains proc and sys.
    """
    size = num_physical_cores(root) // cores
    if not 0 <= number < size or size < 2 or node_cpus < num_physical_cores(root):
        return None
    cpus = cores_of_ranks(size, cores, root)
    return None if cpus is None else cpus[number]


def stay(cores: int) -> socket.socket | None:
    """Have this thread, and what it starts from now on, stay on CPUs of this host that no other engine has.

    They are taken as long as what is returned is open: nobody else has to know of an engine that dies.
    """
    here = ray.get_runtime_context().get_node_id()
    (node,) = [each for each in ray.nodes() if each["NodeID"] == here]
    number, taken = first_free(f"karat/{here}/{cores}", num_physical_cores() // cores)
    if (cpus := cpus_of_engine(number, cores, node["Resources"].get("CPU", 0))) is not None:
        os.sched_setaffinity(0, cpus)
    return taken


def first_free(name: str, most: int) -> tuple[int, socket.socket | None]:
    """The first of `most` numbers that no process of this host has taken by this name, and what takes it: a socket with
    a name of Linux' own, which ends with its process. -1 where there is none, and on other systems.
    """
    for number in range(most):
        taken = socket.socket(socket.AF_UNIX)
        try:
            taken.bind(f"\0{name}/{number}")
            return number, taken
        except OSError:
            taken.close()
    return -1, None
