"""A kept result says where it comes from."""

import json
from pathlib import Path

import pytest

from benchmarks import record
from karat.cli.bench import as_text
from karat.ops.native import unavailable_reason


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


@pytest.mark.long
@pytest.mark.skipif(unavailable_reason() is not None, reason="ranks need the native extension")
def test_a_result_of_ranks_is_kept_beside_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "commit", lambda: "0123abc")
    options = ["--shape", "tiny", "--weights", "q4_0", "-n", "1", "--repeat", "1", "--batch", "1", "-p", "4"]
    options += ["--context", "0", "--tensor-parallel-size", "2"]
    kept = json.loads(record.record("ranks-try", options, tmp_path).read_text(encoding="utf-8"))
    assert kept["command"].endswith("--tensor-parallel-size 2") and kept["karat"]["tensor_parallel_size"] == 2
    assert kept["peer"]["name"] == "1 process" and kept["exchange"]["all_reduce_s"] > 0
    assert kept["rows"][0]["peer"]["ratio"] > 0 and "1 process" in as_text(kept)


def test_a_result_of_throughput_is_shown_as_its_command_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "commit", lambda: "0123abc")
    from karat.config import embedded_model_path

    options = ["throughput", str(embedded_model_path()), "--num-prompts", "2", "--prompt-tokens", "4", "--tokens", "2"]
    text = record.record("try", options, tmp_path).read_text(encoding="utf-8")
    kept = json.loads(text)
    assert kept["command"].startswith("karat bench throughput embedded --num-prompts 2")
    assert str(embedded_model_path().parent) not in text, "no folder of this machine"
    assert "requests/s" in record.shown(kept)


@pytest.mark.parametrize("name", ["", "../x", "A b", "-x"])
def test_odd_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="names no result"):
        record.record(name, [], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_second_result_of_a_day_takes_the_place_of_none(tmp_path: Path) -> None:
    result = {"date": "2026-11-22T10:00:00", "machine": {"cpu": "A  CPU", "usable_cores": 2}}
    paths = [record.keep("x", result | {"turn": turn}, tmp_path) for turn in range(3)]
    assert [path.name for path in paths] == [f"2026-11-22-a-cpu-2-cores-x{end}.json" for end in ("", "-2", "-3")]
    assert [json.loads(path.read_text(encoding="utf-8"))["turn"] for path in paths] == [0, 1, 2]


def test_files_are_named_without_their_folders(tmp_path: Path) -> None:
    (file := tmp_path / "a.gguf").touch()
    result = {"date": "2026-11-22T10:00:00", "machine": {"cpu": "A CPU", "usable_cores": 2}}
    facts = {"servers": [{"model": str(file)}], "peer": f"llama.cpp={file}", "route": "/v1/completions"}
    kept = json.loads(record.keep("x", result | facts, tmp_path).read_text(encoding="utf-8"))
    assert kept["servers"] == [{"model": "a.gguf"}] and kept["peer"] == "llama.cpp=a.gguf"
    assert kept["route"] == "/v1/completions"
