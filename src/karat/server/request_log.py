"""The log of a server: its lines for people or for programs, and what a request adds to those that belong to it.

A request has an id: the client's `x-request-id`, or a new one. It is in the answer's header, in every error, and in
every line of the log that is written while the request is served. No line has a prompt, an answer or a key.
"""

import json
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from karat.server.errors import ApiError
from karat.server.log_writer import LogWriter, discard_stderr, stderr_copy

LogFormat = Literal["text", "json"]
MAX_ID_CHARS = 128
_LEVELS = {logging.WARNING: "warning", logging.ERROR: "error", logging.CRITICAL: "critical", logging.DEBUG: "debug"}
_facts: ContextVar[dict[str, Any] | None] = ContextVar("karat_request", default=None)


def new_id() -> str:
    return f"req_{secrets.token_hex(12)}"


def checked_id(given: str) -> str:
    """A client's id. ApiError 400 unless it is 1 to MAX_ID_CHARS visible characters of ASCII."""
    if 0 < len(given) <= MAX_ID_CHARS and given.isascii() and given.isprintable() and " " not in given:
        return given
    raise ApiError(
        400,
        f"the header x-request-id has {len(given)} characters, or some that are not visible ASCII; expected 1 to "
        f"{MAX_ID_CHARS} that are, or no such header",
        code="invalid_request_id",
    )


@contextmanager
def serving(request_id: str) -> Iterator[dict[str, Any]]:
    """Lines and errors inside belong to this request, those of tasks that are begun inside too."""
    facts = {"request_id": request_id}
    token = _facts.set(facts)
    try:
        yield facts
    finally:
        _facts.reset(token)


def request_id() -> str | None:
    """Of the request that is being served; None outside of one."""
    facts = _facts.get()
    return None if facts is None else str(facts["request_id"])


def add_facts(**facts: Any) -> None:
    """For the line that the request ends with. Numbers and words of ours, never of a client."""
    found = _facts.get()
    if found is not None:
        found.update(facts)


class TextLines(logging.Formatter):
    """A line for people: time, message, the request's id."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        named = request_id()
        return line if named is None else f"{line} {named}"


class JsonLines(logging.Formatter):
    """One object a line: `time` (UTC), `level`, `logger`, `message`, `request_id`; at a request's end `method`, `path`,
    `status`, `seconds`, and of an answer `prompt_tokens`, `cached_tokens`, `output_tokens`, `end`; for an error
    `traceback`.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": _LEVELS.get(record.levelno, "info"),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (named := request_id()) is not None:
            line["request_id"] = named
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class ServerLog:
    """The log of a process that serves: all lines of Karat's, and warnings of its libraries, to stderr.

    Nothing here waits for who reads them (karat.server.log_writer). With `quiet` only errors are written.
    """

    def __init__(self, form: LogFormat, *, quiet: bool) -> None:
        self._lines = JsonLines() if form == "json" else TextLines()
        self._writer = LogWriter(stderr_copy(), self._lost)
        self._handler = _Handler(self._writer)
        self._handler.setFormatter(self._lines)
        logging.getLogger().addHandler(self._handler)
        logging.getLogger("karat").setLevel(logging.ERROR if quiet else logging.INFO)
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)

    def put(self, line: str) -> None:
        """A line for people, as it is."""
        self._writer.put(line)

    def num_lost(self) -> int:
        """The number of lines that nobody took."""
        return self._writer.num_lost

    def close(self) -> None:
        """Wait a moment for the last lines. If nobody takes them, nothing that is written later waits either."""
        logging.getLogger().removeHandler(self._handler)
        if not self._writer.close():
            discard_stderr()

    def _lost(self, num: int) -> str:
        text = f"{num} lines of the log are lost: stderr took no more"
        return self._lines.format(logging.LogRecord("karat.server", logging.WARNING, "", 0, text, None, None))


class _Handler(logging.Handler):
    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.put(self.format(record))
