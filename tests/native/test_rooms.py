"""The rooms of csrc: which of them there are, and that an include never points to a later one."""

import re
from collections.abc import Mapping
from pathlib import Path

CSRC = Path(__file__).resolve().parents[2] / "csrc"

# A room includes from itself and from the rooms before it.
ROOMS = "contract simd formats kernels search measure runtime group plan gpu python".split()


def sources(folder: Path) -> dict[str, str]:
    """Path below `folder` to text of every C++ file."""
    paths = sorted([*folder.rglob("*.h"), *folder.rglob("*.cpp")])
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def wrong_includes(files: Mapping[str, str]) -> list[str]:
    """Includes of our own that name no file of ours, or one of a later room."""
    found = []
    for name, text in files.items():
        for included in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
            if included not in files:
                found.append(f"{name} includes {included}, which is not the room and name of a header")
            elif ROOMS.index(included.split("/")[0]) > ROOMS.index(name.split("/")[0]):
                found.append(f"{name} includes {included}, of a later room")
    return found


def test_every_source_is_in_a_room_of_the_list() -> None:
    folders = {name.rpartition("/")[0] for name in sources(CSRC)}
    assert folders == {*ROOMS, "plan/ops"}  # of the room "plan"


def test_no_include_points_to_a_later_room() -> None:
    assert not wrong_includes(sources(CSRC))


def test_an_include_of_a_later_room_is_found() -> None:
    files = {"simd/a.h": '#include "plan/b.h"\n#include "a.h"\n', "plan/b.h": '#include "simd/a.h"\n'}
    assert wrong_includes(files) == [
        "simd/a.h includes plan/b.h, of a later room",
        "simd/a.h includes a.h, which is not the room and name of a header",
    ]
