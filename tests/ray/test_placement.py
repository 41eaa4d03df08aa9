"""cpus_of_engine: engines of one host share its cores out by NUMA nodes, where the host is theirs alone. And what Ray
is told of an engine's memory.
"""

import os
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray cannot be had here")
from karat.ray.placement import cpus_of_engine, memory_of_engine


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sockets of four cores with two threads each: CPU n and n + 8 are one core, even cores are node 0's."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    for cpu in range(16):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")
    for node in range(2):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(",".join(str(cpu) for cpu in range(16) if cpu % 2 == node) + "\n")
    return tmp_path


def test_an_engine_a_numa_node(root: Path) -> None:
    places = [cpus_of_engine(number, 4, 16, root) for number in range(2)]
    assert places == [frozenset(range(0, 16, 2)), frozenset(range(1, 16, 2))]


def test_two_engines_a_numa_node(root: Path) -> None:
    places = [cpus_of_engine(number, 2, 8, root) for number in range(4)]
    assert places[0] == {0, 2, 8, 10} and places[3] == {5, 7, 13, 15}
    assert frozenset[int]().union(*(place or () for place in places)) == frozenset(range(16))


@pytest.mark.parametrize(
    ("number", "cores", "node_cpus"),
    [(0, 8, 8), (0, 5, 8), (2, 4, 8), (0, 4, 4)],
    ids=["whole host", "one fits", "one too many", "half is somebody else's"],
)
def test_the_system_places(root: Path, number: int, cores: int, node_cpus: int) -> None:
    assert cpus_of_engine(number, cores, node_cpus, root) is None


def test_memory_is_that_of_the_weights_and_of_the_cache(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(bytes(700))
    (tmp_path / "b.safetensors").write_bytes(bytes(70))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "m.gguf").write_bytes(bytes(40))
    assert memory_of_engine(str(tmp_path / "m.gguf"), {}) == 40
    assert memory_of_engine(str(tmp_path), {"kv_cache_bytes": 1000}) == 1810
    for part in (1, 2, 3):
        (tmp_path / f"s-0000{part}-of-00003.gguf").write_bytes(bytes(part))
    (tmp_path / "t-00002-of-00003.gguf").write_bytes(bytes(100))
    assert memory_of_engine(str(tmp_path / "s-00001-of-00003.gguf"), {}) == 6
    assert memory_of_engine(None, {}) == memory_of_engine("org/name", {"kv_cache_bytes": None}) == 0
