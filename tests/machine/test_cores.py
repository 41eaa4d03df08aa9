"""How many threads the native executor takes, from what the system says of its CPUs.

Covers: karat.machine.control_groups.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.machine.cores import num_physical_cores

TOPOLOGY = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
V1, V2 = "sys/fs/cgroup/cpu/", "sys/fs/cgroup/"


def machine(folder: Path, cores: list[tuple[int, ...]], files: Mapping[str, str] | None = None) -> Path:
    """A root whose CPUs are grouped into cores, with other files."""
    siblings = {TOPOLOGY.format(cpu): ",".join(map(str, core)) for core in cores for cpu in core}
    for name, text in {**siblings, **(files or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    return folder


def allow(monkeypatch: pytest.MonkeyPatch, *cpus: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(cpus), raising=False)


def test_hardware_threads_of_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine(tmp_path, [(0, 4), (1, 5), (2, 6), (3, 7)])
    allow(monkeypatch, *range(8))
    assert num_physical_cores(root) == 4


@pytest.mark.parametrize(("cpus", "cores"), [((0,), 1), ((0, 4), 1), ((0, 5), 2), ((4, 5, 6), 3)])
def test_only_cpus_that_the_process_may_run_on_count(
    cpus: tuple[int, ...], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = machine(tmp_path, [(0, 4), (1, 5), (2, 6), (3, 7)])
    allow(monkeypatch, *cpus)
    assert num_physical_cores(root) == cores


def test_without_a_topology_every_cpu_is_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, 0, 1, 2)
    assert num_physical_cores(tmp_path) == 3


def test_without_affinity_all_cpus_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert num_physical_cores(tmp_path) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert num_physical_cores(tmp_path) == 1


QUOTAS = {
    "version 2": ({V2 + "cpu.max": "200000 100000"}, 2),
    "version 2, rounded up": ({V2 + "cpu.max": "150000 100000"}, 2),
    "version 2, less than one": ({V2 + "cpu.max": "5000 100000"}, 1),
    "version 2, more than there are": ({V2 + "cpu.max": "6400000 100000"}, 8),
    "version 2, none": ({V2 + "cpu.max": "max 100000"}, 8),
    "version 2, own group": ({"proc/self/cgroup": "0::/a/b", V2 + "a/b/cpu.max": "300000 100000"}, 3),
    "version 2, group around": (
        {"proc/self/cgroup": "0::/a/b", V2 + "a/b/cpu.max": "max 100000", V2 + "a/cpu.max": "400000 100000"},
        4,
    ),
    "version 2, the tightest": (
        {"proc/self/cgroup": "0::/a/b", V2 + "a/b/cpu.max": "500000 100000", V2 + "a/cpu.max": "300000 100000"},
        3,
    ),
    "version 2, a group that is not seen": ({"proc/self/cgroup": "0::/../x", V2 + "cpu.max": "200000 100000"}, 2),
    "version 2, another's group": ({"proc/self/cgroup": "0::/a", V2 + "b/cpu.max": "100000 100000"}, 8),
    "version 1": (
        {"proc/self/cgroup": "4:cpu,cpuacct:/", V1 + "cpu.cfs_quota_us": "250000", V1 + "cpu.cfs_period_us": "100000"},
        3,
    ),
    "version 1, none": (
        {"proc/self/cgroup": "4:cpu,cpuacct:/", V1 + "cpu.cfs_quota_us": "-1", V1 + "cpu.cfs_period_us": "100000"},
        8,
    ),
    "version 1, own group": (
        {
            "proc/self/cgroup": "5:cpuset:/x\n4:cpuacct,cpu:/docker/1:2\n0::/",
            V1 + "docker/1:2/cpu.cfs_quota_us": "200000",
            V1 + "docker/1:2/cpu.cfs_period_us": "100000",
        },
        2,
    ),
    "version 1, seen as the top": (
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/12",
            V1 + "cpu.cfs_quota_us": "100000",
            V1 + "cpu.cfs_period_us": "50000",
        },
        2,
    ),
    "nonsense": ({V2 + "cpu.max": "one 0"}, 8),
    "no period": ({V2 + "cpu.max": "100000"}, 8),
    "a period of 0": ({V2 + "cpu.max": "100000 0"}, 8),
}


@pytest.mark.parametrize(("files", "cores"), QUOTAS.values(), ids=QUOTAS)
def test_a_quota_bounds_the_threads(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = machine(tmp_path, [(cpu,) for cpu in range(8)], files)
    allow(monkeypatch, *range(8))
    assert num_physical_cores(root) == cores


@given(data=st.data())
def test_never_more_than_cores_cpus_or_quota(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    per_core = data.draw(st.integers(1, 4))
    count = data.draw(st.integers(1, 12))
    cores = [tuple(range(core * per_core, (core + 1) * per_core)) for core in range(count)]
    allowed = data.draw(st.sets(st.integers(0, count * per_core - 1), min_size=1))
    quota = data.draw(st.integers(1, 2_000_000))
    root = machine(tmp_path_factory.mktemp("machine"), cores, {V2 + "cpu.max": f"{quota} 100000"})
    with pytest.MonkeyPatch.context() as monkeypatch:
        allow(monkeypatch, *allowed)
        got = num_physical_cores(root)
    touched = sum(bool(allowed.intersection(core)) for core in cores)
    assert got == max(1, min(touched, -(-quota // 100_000)))
