"""Available memory as different systems state it."""

from pathlib import Path

import pytest

from karat.engine.memory import available_bytes, require_room
from karat.errors import CapacityError

GIB = 1024**3


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


MEMINFO = {"proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\nHugePages_Total:       0"}
V2 = {
    "sys/fs/cgroup/memory.max": str(4 * GIB),
    "sys/fs/cgroup/memory.current": str(3 * GIB),
    "sys/fs/cgroup/memory.stat": f"anon {GIB}\nactive_file {GIB}\ninactive_file {GIB // 2}\nshmem 0",
}
V1 = {
    "sys/fs/cgroup/memory/memory.limit_in_bytes": str(5 * GIB),
    "sys/fs/cgroup/memory/memory.usage_in_bytes": str(3 * GIB),
    "sys/fs/cgroup/memory/memory.stat": f"active_file 1\ninactive_file 1\ntotal_inactive_file {GIB}",
}


def nested(own: str, folder: str, gib: int) -> dict[str, str]:
    """A limit of so many GiB, one of them taken, on a group; `own` is the process' line."""
    limits = {"memory.max": str(gib * GIB), "memory.current": str(GIB), "memory.stat": "anon 0"}
    of_folder = {f"sys/fs/cgroup/{folder}{name}": text for name, text in limits.items()} if folder else {}
    return {"proc/self/cgroup": own} | of_folder


@pytest.mark.parametrize(
    ("files", "available"),
    [
        (MEMINFO, 8 * GIB),
        (MEMINFO | V2, 2.5 * GIB),
        (MEMINFO | V1, 3 * GIB),
        (MEMINFO | V2 | {"sys/fs/cgroup/memory.max": "max"}, 8 * GIB),
        (MEMINFO | V1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096)}, 8 * GIB),
        (MEMINFO | V2 | {"sys/fs/cgroup/memory.current": str(9 * GIB)}, 0),
        (MEMINFO | V2 | nested("0::/user.slice/app.scope", "", 3), 2.5 * GIB),
        (MEMINFO | nested("0::/user.slice/app.scope", "user.slice/app.scope/", 3), 2 * GIB),
        (MEMINFO | V2 | nested("0::/user.slice/app.scope", "user.slice/", 2), GIB),
        (MEMINFO | nested("0::/user.slice/app.scope", "another/", 1), 8 * GIB),
        (MEMINFO | V1 | {"proc/self/cgroup": "5:cpu:/\n4:memory:/job"}, 3 * GIB),
        (
            MEMINFO
            | {"proc/self/cgroup": "4:memory:/job"}
            | {name.replace("memory/", "memory/job/"): text for name, text in V1.items()},
            3 * GIB,
        ),
    ],
)
def test_linux(tmp_path: Path, files: dict[str, str], available: float) -> None:
    write(tmp_path, files)
    assert available_bytes(tmp_path) == available


@pytest.mark.parametrize("files", [{}, {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree:   100 kB"}])
def test_where_the_system_does_not_say(tmp_path: Path, files: dict[str, str]) -> None:
    """No /proc, or an old kernel's or a sandbox's without MemAvailable."""
    write(tmp_path, files)
    assert 2**20 < available_bytes(tmp_path) < 2**50


def test_this_machine() -> None:
    assert 2**20 < available_bytes() < 2**50


def test_weights_that_do_not_fit_are_refused_with_the_figures() -> None:
    require_room(2 * GIB, 2 * GIB)
    with pytest.raises(
        CapacityError, match=r"the weights take 3\.0 GiB of memory, and 2\.0 GiB are available; .*--quantize"
    ):
        require_room(3 * GIB, 2 * GIB)
