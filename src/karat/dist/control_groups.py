"""Where Linux keeps the limits of this process: its control group and those around it."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from karat.dist.placement import read_text


def folders_of_limits(controller: str, root: Path) -> Iterator[tuple[Path, int]]:
    """Folders that may hold limits of a controller ("cpu", "memory"), each with the version of its interface, 1 or 2.

    The tightest limit of all of them holds. `root` holds proc and sys; what is not there is passed over by who reads.
    """
    unified = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines() or ["0::/", f"1:{controller}:/"]:
        _, controllers, group = line.split(":", 2)
        # A container may see its own group as the top one, whatever the name says.
        inside = PurePosixPath(group.lstrip("/"))
        for around in (inside, *inside.parents):
            if not controllers:  # version 2, one tree of groups
                yield unified / around, 2
            elif controller in controllers.split(","):
                yield unified / controller / around, 1
