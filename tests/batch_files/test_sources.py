"""The records of JSON Lines, CSV and Parquet files: as json, csv and pyarrow write them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.batch_files import sources
from karat.batch_files.lines import Fault
from karat.batch_files.sources import RequestLines, TableRows
from karat.errors import UsageError

FIELDS = st.text(max_size=20) | st.integers() | st.lists(st.booleans())
VALUES = st.dictionaries(st.text(max_size=5), FIELDS, max_size=3)
GAPS = st.sampled_from(["\n", " \n", "\r\n"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(VALUES, max_size=6), gaps=st.lists(GAPS, min_size=6, max_size=6))
def test_json_lines(values: list[Any], gaps: list[str], tmp_path: Path) -> None:
    """Numbers are those of the lines, which an editor shows; the last line may have no end."""
    path, lines = tmp_path / "in.jsonl", ""
    expected = []
    for value, gap in zip(values, gaps, strict=False):
        lines += gap
        expected.append((lines.count("\n") + 1, value))
        lines += json.dumps(value) + "\n"
    path.write_text(lines.removesuffix("\n"), newline="")
    assert list(RequestLines(path).records()) == expected
    assert list(RequestLines(path).records()) == expected, "a second time"


def test_lines_that_are_no_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_MAX_LINE", 50)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a": 1}\nnonsense\n\xff\n"' + b"x" * 200 + b'"\n{"b": 2}\n{"c"')
    found = list(RequestLines(path).records())
    assert [number for number, _ in found] == [1, 2, 3, 4, 5, 6]
    faults = {number: record for number, record in found if isinstance(record, Fault)}
    assert {number: fault.code for number, fault in faults.items()} == {
        2: "invalid_json",
        3: "invalid_json",
        4: "invalid_line",
        6: "invalid_json",
    }
    assert "line 2: no JSON" in faults[2].message and "longer than 50 bytes" in faults[4].message
    assert found[4] == (5, {"b": 2})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6))
def test_csv(rows: list[tuple[str, str]], tmp_path: Path) -> None:
    """Texts are texts, also where they look like numbers or nothing."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "in.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["name", "other", "question"])
        writer.writerows((name, "9", text) for name, text in rows)
    texts = list(TableRows(path, "question", None, chat=False).records())
    assert texts == [(number, {"prompt": text}) for number, (_, text) in enumerate(rows, 1)]
    chats = list(TableRows(path, "question", "name", chat=True).records())
    assert chats == [
        (number, {"custom_id": name, "messages": [{"role": "user", "content": text}]})
        for number, (name, text) in enumerate(rows, 1)
    ]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "in.parquet"
    talk = [{"role": "user", "content": "Hi"}]
    table = pyarrow.table({"n": list(range(3000)), "text": ["Once", None, *["x"] * 2998], "talk": [talk] * 3000})
    parquet.write_table(table, path, row_group_size=700)
    records = list(TableRows(path, "text", "n", chat=False).records())
    assert [number for number, _ in records] == list(range(1, 3001))
    assert records[0] == (1, {"custom_id": 0, "prompt": "Once"}) and records[2999][1]["custom_id"] == 2999
    assert isinstance(records[1][1], Fault) and "row 2: text is None" in records[1][1].message
    assert next(TableRows(path, "talk", None, chat=True).records()) == (1, {"messages": talk})
    with pytest.raises(UsageError, match="no column 'prompt'; it has 'n', 'text', 'talk'"):
        TableRows(path, "prompt", None, chat=False)


def test_a_table_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "in.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(UsageError, match=r"expected a whole \.parquet file"):
        TableRows(path, "text", None, chat=False)
