"""The cores of an engine on a host with several: neighbours, so that its threads and memory stay on one NUMA node."""

import os
from pathlib import Path

import ray

from karat.machine.cores import num_physical_cores
from karat.ranks.placement import cores_of_ranks

_ROOT = Path("/")


def cpus_of_engine(number: int, cores: int, node_cpus: float, root: Path = _ROOT) -> frozenset[int] | None:
    """The CPUs of engine `number` of a host, of engines with so many cores each; None where the system should place it.

    The host's physical cores are divided evenly, in the order of their NUMA nodes. None where one engine has the whole
    host, where there are more engines than that, and where Ray counts less than the host has (`node_cpus`): then
    another node of Ray's, or somebody else, has the rest. `root` contains proc and sys.
    """
    size = num_physical_cores(root) // cores
    if not 0 <= number < size or size < 2 or node_cpus < num_physical_cores(root):
        return None
    places = cores_of_ranks(size, cores, root)
    return None if places is None else places[number]


def stay(number: int, cores: int) -> None:
    """Have this thread, and what it starts from now on, stay on the CPUs of engine `number` of this host."""
    here = ray.get_runtime_context().get_node_id()
    (node,) = [each for each in ray.nodes() if each["NodeID"] == here]
    if (cpus := cpus_of_engine(number, cores, node["Resources"].get("CPU", 0))) is not None:
        os.sched_setaffinity(0, cpus)
