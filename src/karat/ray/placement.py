"""What Ray is to keep for an engine, and its cores on a host with several: neighbours, so that its threads and memory
stay on one NUMA node.
"""

import os
import re
from collections.abc import Mapping
from glob import escape
from pathlib import Path
from typing import Any

import ray

from karat.machine.cores import num_physical_cores
from karat.ranks.placement import cores_of_ranks

_ROOT = Path("/")
_WEIGHTS = (".gguf", ".safetensors")
_FIRST_PART = re.compile(r"(.+)-0*1(-of-\d+\.gguf)", re.ASCII)


def memory_of_engine(model: str | None, options: Mapping[str, Any]) -> int:
    """Bytes of memory for the weights and the KV cache of an engine, as far as they are known here: the files of
    weights at this path, all parts of a split, and kv_cache_bytes. What an engine takes beyond that follows from what
    it finds.
    """
    path = Path(model or "")
    files = [*path.iterdir()] if model and path.is_dir() else [path]
    if parts := _FIRST_PART.fullmatch(path.name):
        files = [*path.parent.glob(f"{escape(parts[1])}-*{parts[2]}")]
    weights = sum(file.stat().st_size for file in files if file.suffix in _WEIGHTS and file.is_file())
    return weights + int(options.get("kv_cache_bytes") or 0)


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
