"""Records of the input file, in order and one after the other: JSON Lines, and the rows of CSV and Parquet files."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import msgspec

from karat.batch_files.lines import Fault
from karat.errors import UsageError

TABLES = (".csv", ".parquet")
_MAX_LINE = 64 << 20  # bytes
_ROWS = 1024  # that are read at a time


class Source(Protocol):
    """A file that is read several times."""

    def records(self) -> Iterator[tuple[int, Any]]:
        """The number of each record, from 1, and its JSON value, or a Fault."""
        ...


class RequestLines:
    """A JSON value on each line; empty lines are none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def records(self) -> Iterator[tuple[int, Any]]:
        decode = msgspec.json.Decoder().decode
        with self._path.open("rb") as file:
            number = 0
            while line := file.readline(_MAX_LINE + 1):
                number += 1
                if len(line) > _MAX_LINE:
                    while line and not line.endswith(b"\n"):
                        line = file.readline(_MAX_LINE)
                    yield number, Fault(number, None, "invalid_line", f"line {number}: longer than {_MAX_LINE} bytes")
                elif text := line.strip():
                    try:
                        yield number, decode(text)
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                        said = f"line {number}: no JSON: {str(error)[:200]}"
                        yield number, Fault(number, None, "invalid_json", said)


class TableRows:
    """TableRows of a CSV or Parquet file. `column` has a prompt in each row: a text, or messages (a list of objects).

    With `chat` a text is the message of a user. `id_column` has the custom_ids. UsageError for a file that has no such
    columns, and without pyarrow.
    """

    def __init__(self, path: Path, column: str, id_column: str | None, *, chat: bool) -> None:
        self._path, self._chat = path, chat
        self._columns = [column] if id_column is None else [column, id_column]
        for _ in islice(self._batches(), 1):  # what cannot be read is said before a model is loaded
            pass

    def records(self) -> Iterator[tuple[int, Any]]:
        number = 0
        for batch in self._batches():
            columns = [batch.column(name).to_pylist() for name in self._columns]
            for prompt, *ids in zip(*columns, strict=True):
                number += 1
                yield number, self._record(number, prompt, *ids)

    def _record(self, number: int, prompt: Any, custom_id: object = None) -> Any:
        if not isinstance(prompt, str | list):
            said = f"row {number}: {self._columns[0]} is {prompt!r:.80}; expected a text, or a list of messages"
            return Fault(number, None, "invalid_line", said)
        return record_of(prompt, custom_id, chat=self._chat)

    def _batches(self) -> Iterator[Any]:
        try:
            import pyarrow
            from pyarrow import csv, parquet
        except ImportError:
            raise UsageError(
                f"{self._path}: tables are read by pyarrow, which is not installed; pip install '.[batch]' in a clone"
            ) from None
        try:
            if self._path.suffix == ".parquet":
                with parquet.ParquetFile(self._path) as file:
                    self._require(file.schema_arrow.names)
                    yield from file.iter_batches(_ROWS, columns=self._columns)
            else:
                texts = {name: pyarrow.string() for name in self._columns}
                lines = csv.ParseOptions(newlines_in_values=True)
                cells = csv.ConvertOptions(column_types=texts, strings_can_be_null=False)
                with csv.open_csv(self._path, parse_options=lines, convert_options=cells) as file:
                    self._require(file.schema.names)
                    yield from file
        except pyarrow.ArrowException as error:
            raise UsageError(f"{self._path}: {str(error)[:200]}; expected a whole {self._path.suffix} file") from error

    def _require(self, names: list[str]) -> None:
        for name in self._columns:
            if name not in names:
                raise UsageError(f"{self._path} has no column {name!r}; it has {', '.join(map(repr, names))}")


def record_of(prompt: Any, custom_id: object = None, *, chat: bool) -> dict[str, Any]:
    """What a cell with a prompt asks for: a list of messages, or a text, with `chat` that of a user."""
    named = {} if custom_id is None else {"custom_id": custom_id}
    if isinstance(prompt, list):
        return {**named, "messages": prompt}
    if chat:
        return {**named, "messages": [{"role": "user", "content": prompt}]}
    return {**named, "prompt": prompt}
