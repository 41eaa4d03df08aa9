"""Opening files that somebody else named: only regular ones, and only those of the model's own folder.

And writing whole ones.
"""

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from karat.errors import CheckpointError, KaratError, OutputError

try:
    import resource
except ImportError:  # no Unix
    resource = None  # type: ignore[assignment]


def open_regular(path: Path, error: type[KaratError] = CheckpointError) -> tuple[BinaryIO, int]:
    """The file at `path`, opened for reading, and its size at this moment; raises `error`."""
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as fault:
        raise error(f"{path}: cannot be opened {why(fault, 'does it exist, and may you read it?')}") from fault
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise error(f"{path}: is no regular file; expected one of the model's files")
    return os.fdopen(descriptor, "rb"), status.st_size


def mapped(file: BinaryIO, size: int, path: Path) -> mmap.mmap:
    """The open file `path` in memory, for reading; CheckpointError where it cannot be mapped."""
    try:
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as fault:  # ValueError: the file has become shorter
        raise CheckpointError(f"{path}: cannot be mapped {why(fault, 'is something writing to it?')}") from fault


def why(fault: OSError | ValueError, advice: str) -> str:
    """The reason in brackets, and `advice`; where the process may open no more files, its limit and how to raise it."""
    if isinstance(fault, OSError) and fault.errno == errno.EMFILE:
        return f"({fault.strerror}: the limit of this process is {descriptor_limit()}); raise it with ulimit -n"
    return f"({fault.strerror if isinstance(fault, OSError) and fault.strerror else fault}); {advice}"


def descriptor_limit() -> str:
    """How many files this process may have open, in words."""
    return "unknown" if resource is None else str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def member(folder: Path, name: str, error: type[KaratError] = CheckpointError) -> Path | None:
    """The file `name` of `folder`, None if there is none; raises `error` if a link leads out of it.

    Links within the folder are followed, and those of a hub cache, `<cache>/<repo>/snapshots/<commit>` and folders in
    there, to its two stores of blobs. Raises OSError if the folder cannot be searched.
    """
    path = folder / name
    if not path.exists():
        if path.is_symlink():
            raise error(f"{path}: is a link to {path.readlink()}, which is not there; download it again")
        return None
    home, target = folder.resolve(), path.resolve()
    homes = [home]
    if (snapshots := next((parent for parent in home.parents if parent.name == "snapshots"), None)) is not None:
        homes += [(snapshots.parent / "blobs").resolve(), (snapshots.parent.parent / "blobs").resolve()]
    if not any(target.is_relative_to(home) for home in homes):
        raise error(
            f"{path}: is a link out of the folder, to {target}; a model may only use its own files: copy or "
            "hard-link it there"
        )
    return path


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the name `path`, and the place of a file of that name, when the block ends well.

    Until then it is a hidden file beside it, of which only SIGKILL and the like leave anything. What is no regular file
    (a pipe), or another name of an open one (/dev/stdout, /proc/1/fd/3), is written as it is. Raises OutputError where
    it cannot be written.
    """
    try:
        if path.exists() and (not path.is_file() or _is_descriptor(path)):
            with path.open("wb") as file:
                yield file
            return
        target = path.resolve()  # a link stays, and what it leads to is replaced
        part = target.with_name(f".{target.name}.{os.urandom(4).hex()}.part")
        with part.open("xb") as file:
            try:
                yield file
                file.flush()
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
    except OSError as fault:
        reason = fault.strerror or str(fault)
        full = fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "free some space, or write to another disk" if full else "choose another place"
        raise OutputError(f"{path}: cannot be written ({reason}); {remedy}") from fault


def _is_descriptor(path: Path) -> bool:
    """Whether a path leads to what a process has open, rather than to a name in a folder."""
    parts = path.absolute().parts
    return parts[1:2] == ("proc",) or (parts[1:2] == ("dev",) and parts[2:3] != ("shm",))
