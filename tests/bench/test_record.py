"""A kept result says where it comes from."""

import json
from pathlib import Path

import pytest

from benchmarks import record
from karat.cli.bench import as_text


@pytest.mark.slow
def test_a_result_is_kept_with_commit_and_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "commit", lambda: "0123abc")
    options = ["--shape", "tiny", "-n", "1", "--repeat", "1", "--batch", "1", "-p", "4", "--context", "0"]
    path = record.record("try-1", options, tmp_path)
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["command"] == "karat bench --shape tiny -n 1 --repeat 1 --batch 1 -p 4 --context 0"
    assert kept["commit"] == "0123abc" and kept["schema"] == 1
    assert path.name.startswith(kept["date"][:10]) and path.name.endswith("-cores-try-1.json")
    assert "prefill 4" in as_text(kept)


@pytest.mark.parametrize("name", ["", "../x", "A b", "-x"])
def test_odd_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="names no result"):
        record.record(name, [], tmp_path)
    assert not list(tmp_path.iterdir())
