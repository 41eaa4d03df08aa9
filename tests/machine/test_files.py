"""Files of the system: what cannot be read is as good as not there."""

from pathlib import Path

from karat.machine.files import read_text


def test_a_file_is_read_without_its_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "cpu.max"
    path.write_text("max 100000\n")
    assert read_text(path) == "max 100000"


def test_what_cannot_be_read_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "latin"
    path.write_bytes(b"\xff\xfe")
    assert [read_text(p) for p in (path, tmp_path / "absent", tmp_path)] == ["", "", ""]
