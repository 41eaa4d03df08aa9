"""A disk that is full when an older file is written again: the older one stays as it was, and nothing else is left."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.conftest import Karat


@contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """No file that is written inside, by a process started there, may be larger."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_conversation_that_was_saved_before(alphabet: Path, tmp_path: Path, karat: Karat) -> None:
    path = tmp_path / "saved" / "c.json"
    path.parent.mkdir()
    entries = f"one\n/save {path}\n"
    good = karat("chat", "-q", str(alphabet), stdin=entries)
    assert good.returncode == 0
    before = path.read_bytes()
    path.unlink()
    with room_for(2 * len(before)):
        done = karat("chat", "-q", str(alphabet), stdin=f"{entries}{'x' * 3 * len(before)}\n/save {path}\n")
    assert done.returncode == 1 and f"{path}: cannot be written (File too large); free some space" in done.stderr
    assert list(path.parent.iterdir()) == [path] and path.read_bytes() == before


def test_a_report(tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "r.html"
    path.write_bytes(b"an older one")
    with room_for(1000):
        done = karat_here("check", "--stages", "weights", "--report", str(path))
    assert done.returncode == 2 and f"{path}: cannot be written (File too large); free some space" in done.stderr
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"an older one"
