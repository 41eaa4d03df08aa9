"""Measuring every format: the files are what they are called, and a result becomes a row."""

from pathlib import Path

import pytest

from benchmarks import formats
from karat.convert import MIXES
from karat.models.opening import open_model


def test_a_file_of_each_type_that_karat_writes(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    for name, expected in (("Q4_K_M", {"Q5_0", "Q6_K", "F32", "Q8_0"}), ("Q5_1", {"Q5_1", "Q6_K", "Q8_0", "F32"})):
        weights = open_model(formats.make_file(tmp_path, "tiny", name, pure=False)).weights
        assert {weight.dtype for weight in weights.values()} <= expected
    pure = open_model(formats.make_file(tmp_path, "tiny", "Q5_1", pure=True)).weights
    assert {weight.dtype for weight in pure.values() if len(weight.shape) > 1} == {"Q5_1"}
    assert len(list(tmp_path.iterdir())) == 4  # with what they are made of


@pytest.mark.slow
def test_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf")
    monkeypatch.setattr("benchmarks.record.commit", lambda: "0123abc")
    options = ["--shape", "tiny", "--peer", "none", "-p", "4", "-n", "1", "--repeat", "1", "--folder", str(tmp_path)]
    formats.main([*options, "Q4_0"], tmp_path / "results")
    row = capsys.readouterr().out.strip().splitlines()[-1]
    assert row.startswith("| Q4_0 | ")
    assert row.count("|") == 8
    assert [path.name[-len("format-tiny-q4_0.json") :] for path in (tmp_path / "results").iterdir()] == [
        "format-tiny-q4_0.json"
    ]


def test_unknown_types_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        formats.main(["Q9"])
    assert "Q9: expected some of F32" in capsys.readouterr().err


def test_every_type_can_be_made() -> None:
    assert all(name in MIXES for name in formats.TYPES)
