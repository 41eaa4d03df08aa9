"""cpus_of_engine: engines of one host share its cores out by NUMA nodes, where the host is theirs alone. And which
nodes have room for them.
"""

import os
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="Ray cannot be had here")
from karat.errors import UsageError  # noqa: E402
from karat.ray.placement import cpus_of_engine, first_free, places  # noqa: E402 - it needs Ray


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


def test_a_number_is_taken_by_one_process() -> None:
    """And free again when its socket is closed, as it is where its process dies."""
    name = f"karat-test/{os.getpid()}"
    (one, first), (two, _second) = first_free(name, 2), first_free(name, 2)
    assert (one, two) == (0, 1) and first_free(name, 2) == (-1, None) and first is not None
    first.close()
    again, _third = first_free(name, 2)
    assert again == 0


class Nodes:
    """Ray's list of nodes."""

    def __init__(self, *nodes: tuple[int, int]) -> None:
        self._nodes = nodes

    def __call__(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": str(number), "Alive": cpus >= 0, "Resources": {"CPU": cpus, "memory": memory}}
            for number, (cpus, memory) in enumerate(self._nodes)
        ]


@pytest.mark.parametrize(
    ("nodes", "memory", "asked", "wanted"),
    [
        ([(8, 100), (16, 100)], 10, {}, [("0", 8), ("1", 16)]),
        ([(8, 100), (16, 100)], 10, {"spare": 1}, [("0", 7), ("1", 15)]),
        ([(1, 100), (0, 100), (-1, 100)], 10, {"spare": 1}, [("0", 1)]),
        ([(8, 100), (16, 100)], 40, {"cores": 4}, [("0", 4)] * 2 + [("1", 4)] * 2),
        ([(8, 100), (16, 100)], 0, {"cores": 8, "most": 2}, [("0", 8), ("1", 8)]),
    ],
    ids=["whole hosts", "but a core", "the smallest", "as memory holds", "the most"],
)
def test_room(
    nodes: list[tuple[int, int]],
    memory: int,
    asked: dict[str, int],
    wanted: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray, "nodes", Nodes(*nodes))
    assert places(memory, **{"cores": None, "most": None, **asked}) == wanted  # type: ignore[arg-type]


def test_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", Nodes((4, 10**9)))
    with pytest.raises(UsageError, match=r"no node of the cluster has 64 cores and 0\.5 GB of memory; say fewer with"):
        places(5 * 10**8, cores=64, most=None)
    with pytest.raises(UsageError, match=r"has 1 cores and 2 GB of memory"):
        places(2 * 10**9, cores=None, most=None)
