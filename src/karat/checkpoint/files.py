"""Files: opening those of a model (regular files, or links to such), and writing whole ones."""

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
    """The file at `path`, opened for reading, and its size in bytes at this moment. Raises `error`."""
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
    """The first `size` bytes of the open file `path`, mapped read-only. Raises CheckpointError."""
    try:
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as fault:  # ValueError: the file has become shorter
        raise CheckpointError(f"{path}: cannot be mapped {why(fault, 'is something writing to it?')}") from fault


def why(fault: OSError | ValueError, advice: str) -> str:
    """The reason in brackets, then `advice`.

    Where the process may open no more files, its limit and how to raise it instead.
    """
    if isinstance(fault, OSError) and fault.errno == errno.EMFILE:
        return f"({fault.strerror}: the limit of this process is {descriptor_limit()}); raise it with ulimit -n"
    return f"({fault.strerror if isinstance(fault, OSError) and fault.strerror else fault}); {advice}"


def descriptor_limit() -> str:
    """The number of files that this process may have open, as text."""
    return "unknown" if resource is None else str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def member(folder: Path, name: str, error: type[KaratError] = CheckpointError) -> Path | None:
    """The file `name` of `folder`, None if there is none. A link is followed, wherever it leads: its user made it.

    A name that a file of the model states must be checked before: it may have no folder. Raises `error` for a link to
    nothing, OSError if the folder cannot be searched.
    """
    path = folder / name
    if not path.exists():
        if path.is_symlink():
            raise error(f"{path}: is a link to {path.readlink()}, which is not there; download it again")
        return None
    return path


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write. It takes the name `path`, and replaces a file of that name, when the block ends without error.

    Until then it is a hidden file in the same folder. It is removed on any error; only SIGKILL and the like leave it.
    A path that is no regular file (a pipe), or names an open descriptor (/dev/stdout, /proc/1/fd/3), is written
    directly. Raises OutputError where it cannot be written.
    """
    try:
        if path.exists() and (not path.is_file() or _is_descriptor(path)):
            with path.open("wb") as file:
                yield file
            return
        target = path.resolve()  # a link stays; the file that it leads to is replaced
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
    """Whether a path names an open descriptor of a process rather than a file in a folder."""
    parts = path.absolute().parts
    return parts[1:2] == ("proc",) or (parts[1:2] == ("dev",) and parts[2:3] != ("shm",))
