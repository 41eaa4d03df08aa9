"""A file is written whole or not at all, whatever stops it.

Covers: karat.checkpoint.files.
"""

import os
import threading
from pathlib import Path

import pytest

from karat.checkpoint.files import whole_file
from karat.errors import OutputError


@pytest.mark.parametrize("before", [None, b"an older file"])
@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("x")])
def test_after_a_failure_there_is_what_was_there_before(
    before: bytes | None, fault: BaseException, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    if before is not None:
        path.write_bytes(before)

    def write() -> None:
        with whole_file(path) as file:
            file.write(bytes(100_000))
            raise fault

    with pytest.raises((OutputError, KeyboardInterrupt, ValueError)) as caught:
        write()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == ({} if before is None else {"x": before})
    if isinstance(fault, OSError):
        assert str(caught.value) == (
            f"{path}: cannot be written (No space left on device); free some space, or write to another disk"
        )


def test_it_appears_when_it_is_complete_and_replaces_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with whole_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to(real)
    with whole_file(link) as file:
        file.write(b"new")
    assert link.is_symlink() and real.read_bytes() == b"new"


def test_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    path, got = tmp_path / "pipe", bytearray()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: got.extend(path.read_bytes()))
    reader.start()
    with whole_file(path) as file:
        file.write(b"data")
    reader.join()
    assert bytes(got) == b"data" and path.is_fifo()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_what_is_open_is_written_and_not_replaced(tmp_path: Path) -> None:
    """As ranks write into a file of the first, and as /dev/stdout is."""
    with (tmp_path / "x").open("w+b") as opened:
        for path in (Path(f"/proc/{os.getpid()}/fd/{opened.fileno()}"), Path(f"/dev/fd/{opened.fileno()}")):
            with whole_file(path) as file:
                file.write(path.name.encode())
            opened.seek(0)
            assert opened.read() == path.name.encode()


@pytest.mark.parametrize(
    ("name", "reason"), [("none/x", "No such file or directory"), ("folder", "Is a directory"), ("n" * 300, "too long")]
)
def test_places_that_cannot_be_written(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=f"{name}: cannot be written .*{reason}.*; choose another place"):  # noqa: SIM117
        with whole_file(tmp_path / name):
            pytest.fail("there is nothing to write to")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
