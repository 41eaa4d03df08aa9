"""PackedFile: the matrices of a model as kernels read them, written once and mapped from then on.

    "KARATPCK" | length of the header, 8 bytes, little-endian | its SHA-256 | header, JSON | zeros | matrices

Each matrix begins on a page of its own, so that pages of one are not read for another, and zeros follow the last one.
The header names the layout and the model's files (PackedHeader). It is checked in full when a file is opened; what is
in the matrices is as trusted as the model's own files until `verify` has hashed it.
"""

import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.files import mapped, whole_file, why
from karat.checkpoint.weights import Weight, give_back, mapping_of
from karat.errors import CheckpointError, DamageError

MAGIC = b"KARATPCK"
_BEGIN = struct.Struct("<8sQ32s")
_PAGE = 4096
_MAX_HEADER = 256 << 20
_PIECE = 1 << 20  # bytes that are hashed between two pauses
_CHUNK = 32 << 20  # bytes that are written at once: whole large pages
_NO_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True)
class Packing:
    """A matrix that is to be packed: its stored type, [rows, columns], the bytes that it will have, what packs it.

    rows: a digest of which rows of the model's tensor it has, and in which order; empty if all as they lie there.
    """

    dtype: str
    shape: tuple[int, int]
    size: int
    pack: Callable[[], NDArray[np.uint8]]
    rows: str = ""


class SourceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the model's files: its name, bytes, time of the last change in ns, and SHA-256 of what precedes its
    tensors."""

    name: str
    size: int
    changed: int
    header: str


class PackedMatrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A matrix: its name and stored type as it is computed with, [rows, columns], where its bytes lie, their SHA-256.

    `size` counts the bytes of the packed matrix, without zeros behind them. `rows` is that of its Packing: it follows
    from the model's config, which the user may have overridden.
    """

    name: str
    dtype: str
    shape: tuple[int, int]
    start: int
    size: int
    digest: str
    rows: str = ""


class PackedHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`layout` is the version of the packing, `source` the model's files, `size` that of the whole packed file."""

    layout: int
    source: list[SourceFile]
    matrices: list[PackedMatrix]
    size: int


class PackedFile:
    """An open packed file, whose header was checked. Its pages are read when they are used."""

    def __init__(self, path: Path, header: PackedHeader, stored: NDArray[np.uint8]) -> None:
        self.path, self.header, self._stored = path, header, stored
        self._by_name = {(one.name, one.dtype, one.shape): one for one in header.matrices}

    def is_of(self, layout: int, source: list[SourceFile], matrices: Mapping[str, Packing]) -> bool:
        """Whether it is what `write_packed` would write."""
        held = {one.name: (one.dtype, one.shape, one.size, one.rows) for one in self.header.matrices}
        wanted = {name: (one.dtype, one.shape, one.size, one.rows) for name, one in matrices.items()}
        return (self.header.layout, self.header.source, held) == (layout, source, wanted)

    @property
    def num_bytes(self) -> int:
        """Bytes of all packed matrices."""
        return sum(one.size for one in self.header.matrices)

    def find(self, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
        """A read-only view [bytes] that begins with the packed matrix and goes to the end of the file, or None."""
        one = self._by_name.get((name, dtype, shape))  # type: ignore[arg-type]
        return None if one is None else self._stored[one.start :]

    def verify(self, pause: Callable[[], None] = lambda: None) -> None:
        """Hash all matrices, and raise DamageError for the first that is not what was written.

        Pages are given back to the system as they are done. `pause` is called after each MiB.
        """
        for one in self.header.matrices:
            summed, matrix = hashlib.sha256(), self._stored[one.start : one.start + one.size]
            for start in range(0, one.size, _PIECE):
                piece = matrix[start : start + _PIECE]
                summed.update(piece.data)
                give_back(piece)
                pause()
            if summed.hexdigest() != one.digest:
                raise DamageError(
                    f"{self.path}: {one.name} is not what was packed: its digest is {summed.hexdigest()[:16]}…, the "
                    f"header has {one.digest[:16]}…; remove the file, and pack the model again"
                )


def source_of(weights: Iterable[Weight]) -> list[SourceFile]:
    """The files that hold these tensors, by name."""
    first: dict[Path, int] = {}
    for weight in weights:
        found = mapping_of(weight.stored)
        first[weight.file] = min(first.get(weight.file, 1 << 62), 0 if found is None else found[1])
    return [_source(path, first[path]) for path in sorted(first)]


def _source(path: Path, header_bytes: int) -> SourceFile:
    status = path.stat()
    with path.open("rb") as file:
        header = hashlib.sha256(file.read(header_bytes)).hexdigest()
    return SourceFile(path.name, status.st_size, status.st_mtime_ns, header)


def write_packed(
    path: Path,
    layout: int,
    source: list[SourceFile],
    matrices: Mapping[str, Packing],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Pack and write matrices, by name, one at a time. On any error there is no file. `progress` is called with the
    bytes that are written, and all of them. Raises OutputError where it cannot be written."""
    total, done = sum(one.size for one in matrices.values()), 0
    planned = [
        PackedMatrix(name, one.dtype, one.shape, 0, one.size, _NO_DIGEST, one.rows) for name, one in matrices.items()
    ]
    placed = _placed(layout, source, planned)
    with whole_file(path) as file:
        _reserve(file, placed.size)
        digests, chunks = [], _Chunks(file)
        for one in placed.matrices:
            packed = matrices[one.name].pack()
            assert packed.nbytes == one.size, f"{one.name}: {packed.nbytes} bytes, planned {one.size}"
            digests.append(hashlib.sha256(packed.data).hexdigest())
            chunks.add_zeros(one.start)
            chunks.add(packed.data)
            done += one.size
            if progress is not None:
                progress(done, total)
        chunks.add_zeros(placed.size)
        chunks.write()
        file.seek(0)
        known = zip(placed.matrices, digests, strict=True)
        file.write(_head(msgspec.structs.replace(placed, matrices=[_with(one, digest) for one, digest in known])))
        file.flush()
        os.fsync(file.fileno())


class _Chunks:
    """What is written to a file from its beginning on, in pieces that begin at multiples of _CHUNK.

    Linux keeps what is written at once in pieces as large as it can, and maps these by large pages. Of experts that
    were written one by one none was mapped so (benchmarks/log.md, 28 November).
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._held, self._written = file, bytearray(), 0

    def add(self, data: memoryview) -> None:
        while len(data):
            part = data[: _CHUNK - len(self._held)]
            self._held += part
            data = data[len(part) :]
            if len(self._held) == _CHUNK:
                self.write()

    def add_zeros(self, end: int) -> None:
        """Up to this byte of the file."""
        self.add(memoryview(bytes(end - self._written - len(self._held))))

    def write(self) -> None:
        """Write what is held."""
        self._file.write(self._held)
        self._written += len(self._held)
        self._held = bytearray()


def _reserve(file: BinaryIO, size: int) -> None:
    """Room on the disk at once, where the system can: a full disk is found before anything is packed."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def _with(one: PackedMatrix, digest: str) -> PackedMatrix:
    return msgspec.structs.replace(one, digest=digest)


def _placed(layout: int, source: list[SourceFile], planned: list[PackedMatrix]) -> PackedHeader:
    """The header with places: its length depends on the digits of the places, so room is made for the longest."""
    longest = [msgspec.structs.replace(one, start=10**18) for one in planned]
    at = _up(len(_head(PackedHeader(layout, source, longest, 10**18))))
    matrices = []
    for one in planned:
        matrices.append(msgspec.structs.replace(one, start=at))
        at = _up(at + one.size)
    return PackedHeader(layout, source, matrices, at + _PAGE)  # kernels read past the end of a matrix


def _head(header: PackedHeader) -> bytes:
    encoded = msgspec.json.encode(header)
    return _BEGIN.pack(MAGIC, len(encoded), hashlib.sha256(encoded).digest()) + encoded


def _up(number: int) -> int:
    return -(-number // _PAGE) * _PAGE


def open_packed(path: Path) -> PackedFile:
    """The packed file at `path`, opened. Raises CheckpointError for one that is cut, changed in its header, no packed
    file at all, a link, or another user's."""
    advice = "remove it, and pack the model again"
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as fault:
        reason = why(fault, "is it a link, or may you not read it?")
        raise CheckpointError(f"{path}: cannot be opened {reason}") from fault
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path}: is no regular file; expected a packed model")
    with os.fdopen(descriptor, "rb") as file:
        if hasattr(os, "geteuid") and status.st_uid not in (os.geteuid(), 0):
            raise CheckpointError(f"{path}: belongs to user {status.st_uid}, and you are {os.geteuid()}; {advice}")
        begin = file.read(_BEGIN.size)
        if len(begin) < _BEGIN.size or begin[:8] != MAGIC:
            raise CheckpointError(f"{path}: is no packed model; {advice}")
        _, length, digest = _BEGIN.unpack(begin)
        if length > min(_MAX_HEADER, status.st_size - _BEGIN.size):
            raise CheckpointError(f"{path}: its header is {length} bytes in a file of {status.st_size}; {advice}")
        encoded = file.read(length)
        if hashlib.sha256(encoded).digest() != digest:
            raise CheckpointError(f"{path}: its header has been changed or was written in part; {advice}")
        try:
            header = msgspec.json.decode(encoded, type=PackedHeader)
        except msgspec.MsgspecError as fault:
            raise CheckpointError(f"{path}: its header is damaged ({fault}); {advice}") from fault
        if header.size != status.st_size:
            raise CheckpointError(f"{path}: has {status.st_size} bytes and was written with {header.size}; {advice}")
        first, last = _BEGIN.size + length, header.size - _PAGE
        for one in header.matrices:
            if one.start % _PAGE or one.size < 0 or not first <= one.start <= one.start + one.size <= last:
                raise CheckpointError(f"{path}: {one.name} lies at {one.start}, outside the file's matrices; {advice}")
        stored = np.frombuffer(mapped(file, status.st_size, path), np.uint8)
    return PackedFile(path, header, stored)
