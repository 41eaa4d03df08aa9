"""The journal keeps what it says it has kept, and has one owner at a time."""

import resource
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.batch_files.journal import BatchAnswer, Journal
from karat.errors import OutputError, UsageError

NAMES = st.sampled_from("abcd")
ANSWERS = st.builds(
    BatchAnswer, st.sampled_from([200, 400, 500]), st.none() | st.text(max_size=3), st.binary(max_size=20)
)
ADDED = st.lists(st.lists(st.tuples(NAMES, st.sampled_from([b"1", b"2"]), ANSWERS), max_size=3), max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(added=ADDED, reopens=st.booleans())
def test_the_last_answer_counts(
    added: list[list[tuple[str, bytes, BatchAnswer]]], reopens: bool, tmp_path: Path
) -> None:
    (path := tmp_path / "j").unlink(missing_ok=True)
    journal, model = Journal(path), {}
    for several in added:
        journal.add(several)
        model |= {name: (digest, answer) for name, digest, answer in several}
        if reopens:
            journal.close()
            journal = Journal(path)
    for name in "abcd":
        digest, answer = model.get(name, (None, None))
        for wanted in (b"1", b"2"):
            assert journal.answer_of(name, wanted) == (answer if wanted == digest else None)
        assert journal.digest_of(name) == (digest if answer and answer.is_good else None)
    journal.close()


def test_names_are_counted(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    assert [journal.times_seen(name) for name in "abaa"] == [1, 1, 2, 3]
    journal.forget_ids()
    assert journal.times_seen("a") == 1
    journal.close()


def test_facts_must_stay(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.settle({"seed": 1, "body": {"a": 1, "b": 2}})
    journal.close()
    journal = Journal(tmp_path / "j")
    journal.settle({"body": {"b": 2, "a": 1}, "seed": 1})
    with pytest.raises(UsageError, match=r"begun with seed 1, and now it is 2: .* --restart"):
        journal.settle({"seed": 2, "body": {"a": 1, "b": 2}})
    journal.close()


def test_one_owner(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    with pytest.raises(UsageError, match="at work in another process"):
        Journal(tmp_path / "j")
    journal.close()
    Journal(tmp_path / "j").close()


def test_a_foreign_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text("a file of the user's, and no database at all" * 100)
    before = path.read_bytes()
    with pytest.raises(OutputError, match="no journal of Karat"):
        Journal(path)
    assert path.read_bytes() == before


def test_a_disk_that_is_full_loses_nothing(tmp_path: Path) -> None:
    """What was kept before is there afterwards, and the journal goes on when there is room again."""
    path, limits = tmp_path / "j", resource.getrlimit(resource.RLIMIT_FSIZE)
    journal, kept, fault = Journal(path), 0, None
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        while fault is None and kept < 1000:
            try:
                journal.add([(str(kept), b"1", BatchAnswer(200, None, bytes(2000)))])
                kept += 1
            except OutputError as error:
                fault = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert kept > 10 and "free some space, then the same command goes on" in (fault or "")
    assert journal.answer_of(str(kept), b"1") is None
    journal.add([(str(kept), b"1", BatchAnswer(200, None, b"now"))])
    journal.close()
    journal = Journal(path)
    assert [journal.digest_of(str(number)) for number in range(kept + 2)] == [b"1"] * (kept + 1) + [None]
    journal.close()


def test_a_kill_in_the_middle_of_a_transaction(tmp_path: Path) -> None:
    """What was begun and not ended is not there."""
    path = tmp_path / "j"
    killed = (
        "import os, signal, sys; from pathlib import Path; from karat.batch_files.journal import BatchAnswer, Journal\n"
        "journal = Journal(Path(sys.argv[1])); journal.add([('a', b'1', BatchAnswer(200, None, b'x'))])\n"
        "def cut():\n"
        "    yield 'b', b'1', BatchAnswer(200, None, bytes(10**6))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "journal.add(cut())\n"
    )
    done = subprocess.run([sys.executable, "-c", killed, path], check=False)
    assert done.returncode == -signal.SIGKILL
    journal = Journal(path)
    assert journal.digest_of("a") == b"1" and journal.digest_of("b") is None
    journal.close()
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
