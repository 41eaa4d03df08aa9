"""Journal: the answers so far, in a file beside the output, so that a batch that was killed anywhere goes on.

It is a SQLite database. Answers are written in transactions that are on the disk before they count: what was cut off by
a kill, a crash of the system or a full disk was not there. One process at a time has the file.
"""

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from karat.errors import OutputError, UsageError

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
    custom_id TEXT PRIMARY KEY, digest BLOB NOT NULL, status INTEGER NOT NULL, request_id TEXT, body BLOB NOT NULL
);
CREATE TEMP TABLE ids (name TEXT PRIMARY KEY, times INTEGER NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """What came of a request: `body` as the server wrote it, JSON, whatever the status."""

    status: int
    request_id: str | None
    body: bytes

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


class Journal:
    """The journal at `path`, which is made. Errors of the disk are OutputErrors, and lose nothing that was written.

    UsageError if another process has it. Threads may share it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        with self._disk():
            self._db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            with self._disk():
                # The whole of a transaction is synced; the temporary table, of all ids, is on the disk, too.
                self._db.executescript(
                    "PRAGMA locking_mode=EXCLUSIVE; PRAGMA synchronous=FULL; PRAGMA temp_store=FILE; BEGIN EXCLUSIVE;"
                    + _TABLES
                    + "COMMIT;"
                )
        except BaseException:
            self._db.close()
            raise

    def settle(self, facts: Mapping[str, Any]) -> None:
        """Note what all answers of the batch depend on, as far as it is known. UsageError if the journal has other
        facts of the same names.
        """
        wanted = {name: json.dumps(value, sort_keys=True) for name, value in facts.items()}
        with self._disk():
            begun = dict(self._db.execute("SELECT name, value FROM facts"))
            new = [(name, value) for name, value in wanted.items() if name not in begun]
            if new:
                self._db.executemany("INSERT INTO facts VALUES (?, ?)", new)
        for name, value in begun.items():
            if name in wanted and wanted[name] != value:
                raise UsageError(
                    f"{self.path} was begun with {name} {value}, and now it is {wanted[name]}: the answers would not "
                    "belong together; run it as before, or begin anew with --restart"
                )

    def forget_ids(self) -> None:
        """For `times_seen`: nothing was asked about yet."""
        with self._disk():
            self._db.execute("DELETE FROM ids")

    def times_seen(self, name: str) -> int:
        """How many times the input has had this name so far, this time included."""
        asked = "INSERT INTO ids VALUES (?, 1) ON CONFLICT DO UPDATE SET times = times + 1 RETURNING times"
        with self._disk():
            (found,) = self._db.execute(asked, (name,)).fetchone()
        return int(found)

    def digest_of(self, key: str) -> bytes | None:
        """The digest of the request whose good answer is here."""
        with self._disk():
            found = self._db.execute(
                "SELECT digest FROM answers WHERE custom_id = ? AND status BETWEEN 200 AND 299", (key,)
            ).fetchone()
        return None if found is None else found[0]

    def answer_of(self, key: str, digest: bytes) -> BatchAnswer | None:
        """The answer to this request."""
        with self._disk():
            found = self._db.execute(
                "SELECT status, request_id, body FROM answers WHERE custom_id = ? AND digest = ?", (key, digest)
            ).fetchone()
        return None if found is None else BatchAnswer(*found)

    def add(self, answers: Iterable[tuple[str, bytes, BatchAnswer]]) -> None:
        """Keep answers with the keys and digests of their requests. When this returns they are on the disk."""
        with self._disk():
            self._db.execute("BEGIN")
            try:
                self._db.executemany(
                    "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)",
                    [(key, digest, each.status, each.request_id, each.body) for key, digest, each in answers],
                )
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK") if self._db.in_transaction else None
                raise

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except sqlite3.OperationalError as error:
            said = str(error)
            if "locked" in said:
                raise UsageError(f"{self.path} is at work in another process; wait for it, or end it") from error
            advice = "free some space" if "full" in said or "disk I/O" in said else "see whether it can be written"
            raise OutputError(
                f"{self.path}: {said}; {advice}, then the same command goes on: what was answered is kept"
            ) from error
        except sqlite3.DatabaseError as error:
            raise OutputError(f"{self.path} is no journal of Karat ({error}); begin anew with --restart") from error
