"""A packed file is what was written, or it is refused; and nothing is left where it could not be written."""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.checkpoint import packed as packed_module
from karat.checkpoint.files import whole_file
from karat.checkpoint.packed import MAGIC, PackedFile, Packing, SourceFile, _head, open_packed, write_packed
from karat.errors import CheckpointError, OutputError

SOURCE = [SourceFile("model.gguf", 1000, 1_700_000_000_000_000_000, "ab" * 32)]
SIZES = {"a": 5000, "b.weight": 64, "é": 4096}


def content(name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(len(name)).integers(0, 256, SIZES[name], np.uint8)


def matrices() -> dict[str, Packing]:
    return {
        name: Packing("Q8_0", (number + 1, 32), size, lambda name=name: content(name))  # type: ignore[misc]
        for number, (name, size) in enumerate(SIZES.items())
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("packed") / "x"
    done: list[tuple[int, int]] = []
    write_packed(path, 7, SOURCE, matrices(), lambda *counts: done.append(counts))
    assert done == [(5000, 9160), (5064, 9160), (9160, 9160)]
    return path.read_bytes()


def opened(path: Path, content: bytes) -> PackedFile:
    path.write_bytes(content)
    return open_packed(path)


def test_matrices_are_found_by_name_type_and_shape(written: bytes, tmp_path: Path) -> None:
    (path := tmp_path / "x").write_bytes(written)
    packed = open_packed(path)
    header = packed.header
    assert (header.layout, header.source, packed.num_bytes) == (7, SOURCE, 9160)
    for number, name in enumerate(SIZES):
        found = packed.find(name, "Q8_0", (number + 1, 32))
        assert found is not None and not found.flags.writeable and found.ctypes.data % 4096 == 0
        np.testing.assert_array_equal(found[: SIZES[name]], content(name))
        assert len(found) >= SIZES[name] + 64, "kernels read past the end"
        assert packed.find(name, "Q4_0", (number + 1, 32)) is None
        assert packed.find(name, "Q8_0", (number + 2, 32)) is None
    assert packed.find("c", "Q8_0", (1, 32)) is None
    packed.verify()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the system's count of mapped pages")
def test_pages_are_given_back_as_they_are_hashed(tmp_path: Path) -> None:
    size = 32 << 20
    packing = Packing("Q8_0", (1, 32), size, lambda: np.random.default_rng(0).integers(0, 256, size, np.uint8))
    write_packed(tmp_path / "x", 7, SOURCE, {"a": packing})
    packed = open_packed(tmp_path / "x")
    most, before = 0, mapped_bytes()

    def look() -> None:
        nonlocal most
        most = max(most, mapped_bytes() - before)

    packed.verify(look)
    assert most < size / 8


def mapped_bytes() -> int:
    """Of this process's files, in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssFile"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_cut_file_is_refused(written: bytes, tmp_path: Path, share: float) -> None:
    with pytest.raises(CheckpointError, match="pack the model again"):
        opened(tmp_path / "x", written[: int(share * len(written))])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_changed_bit_is_found_in_the_header_at_once_and_in_a_matrix_by_its_digest(
    written: bytes, tmp_path: Path, share: float, bit: int
) -> None:
    header_bytes = 48 + int.from_bytes(written[8:16], "little")
    for size, of_matrix in ((header_bytes, False), (SIZES["a"], True)):
        start = (header_bytes + 4095) // 4096 * 4096 if of_matrix else 0
        changed = bytearray(written)
        changed[start + int(share * size)] ^= 1 << bit
        if of_matrix:
            packed = opened(tmp_path / "x", bytes(changed))
            with pytest.raises(CheckpointError, match="again"):
                packed.verify()
        else:
            with pytest.raises(CheckpointError, match="again"):
                opened(tmp_path / "x", bytes(changed))


@pytest.mark.parametrize("wrong", [{"start": 0}, {"start": 4097}, {"start": 1 << 40}, {"size": -1}, {"size": 1 << 40}])
def test_a_matrix_outside_the_file_is_refused(written: bytes, tmp_path: Path, wrong: dict[str, int]) -> None:
    """Where a header is whole, too: whoever can write the file can write its digest."""
    header = opened(tmp_path / "x", written).header
    first, *others = header.matrices
    made = _head(msgspec.structs.replace(header, matrices=[msgspec.structs.replace(first, **wrong), *others]))
    with pytest.raises(CheckpointError, match="outside the file's matrices; remove it"):
        opened(tmp_path / "x", made + written[len(made) :])


def test_a_header_that_says_something_else_is_refused(written: bytes, tmp_path: Path) -> None:
    """Its digest is right: another program may have written it."""
    header = opened(tmp_path / "x", written).header
    for other, words in (
        (b"{}", "its header is damaged"),
        (msgspec.json.encode(header)[:-1] + b',"more":1}', "its header is damaged"),
        (msgspec.json.encode(msgspec.structs.replace(header, size=header.size - 4096)), "and was written with"),
    ):
        made = MAGIC + len(other).to_bytes(8, "little") + hashlib.sha256(other).digest() + other
        with pytest.raises(CheckpointError, match=f"{words}.*pack the model again"):
            opened(tmp_path / "x", made + written[len(made) :])


def test_it_is_written_in_large_pieces(written: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose pages a system maps as large ones; the header is written last."""
    wrote: list[tuple[int, int]] = []

    class Watched:
        def __init__(self, file: BinaryIO) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def write(self, data: Any) -> int:
            wrote.append((self._file.tell(), len(data)))
            return self._file.write(data)

    @contextmanager
    def watched(path: Path) -> Iterator[Any]:
        with whole_file(path) as file:
            yield Watched(file)

    monkeypatch.setattr(packed_module, "_CHUNK", 4096)
    monkeypatch.setattr(packed_module, "whole_file", watched)
    write_packed(tmp_path / "x", 7, SOURCE, matrices())
    assert (tmp_path / "x").read_bytes() == written
    *pieces, header = wrote
    assert pieces[:-1] == [(start, 4096) for start in range(0, len(written), 4096)]
    assert header[0] == 0


def test_what_is_no_packed_file_is_refused(written: bytes, tmp_path: Path) -> None:
    for other in (b"", b"GGUF" * 100, MAGIC, MAGIC + b"\xff" * 8 + bytes(100)):
        with pytest.raises(CheckpointError, match="pack the model again"):
            opened(tmp_path / "x", other)
    with pytest.raises(CheckpointError, match="is no regular file"):
        open_packed(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "x")
    with pytest.raises(CheckpointError, match="is it a link"):
        open_packed(tmp_path / "link")


def test_a_file_of_another_user_is_refused(written: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "x").write_bytes(written)
    os.chown(path, 4321, -1) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(CheckpointError, match="belongs to user"):
        open_packed(path)


@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_full_disk_leaves_nothing(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    planned = matrices()
    if when == "at once":
        monkeypatch.setattr(os, "posix_fallocate", full)
    else:
        planned["b.weight"] = Packing("Q8_0", (2, 32), 64, full)
    with pytest.raises(OutputError, match="No space left"):
        write_packed(tmp_path / "x", 7, SOURCE, planned)
    assert not list(tmp_path.iterdir())
