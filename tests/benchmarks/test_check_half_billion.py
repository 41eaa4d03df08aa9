"""The benchmark of `karat check` measures a whole process on a model that it wrote."""

import json
import os
from pathlib import Path

import pytest

from benchmarks import check_half_billion, record
from karat.models.opening import open_model


@pytest.mark.slow
def test_a_check_is_measured_on_a_folder_of_random_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    check_half_billion.write_folder(tmp_path, "tiny")
    assert open_model(tmp_path).config["hidden_size"] == 64
    facts = check_half_billion.measure(tmp_path, 24, "weights,logits", "reference")
    assert facts["verdict"] == "numerics" and facts["tokens"] == 24 and list(facts["stages"]) == ["weights", "logits"]
    assert facts["stages"]["weights"]["verdict"] == "exact" and facts["check"].startswith(
        "karat check MODEL --tokens 24"
    )
    assert facts["seconds"] > 0 and facts["cpu_seconds"] > 0 and facts["peak_rss_bytes"] > 20 << 20
    with pytest.raises(SystemExit, match="exit code 2"):
        check_half_billion.measure(tmp_path, 24, "nothing", "reference")


def test_a_result_is_kept_with_machine_commit_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command line on a tiny shape: what is printed is what is kept."""
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    monkeypatch.setattr(record, "commit", lambda: "0123abc")
    words = ["--shape", "tiny", "--tokens", "8", "--stages", "weights,layers", "--against", "reference"]
    check_half_billion.main([*words, "--results", str(tmp_path / "kept"), "--folder", str(tmp_path / "model")])
    (path,) = (tmp_path / "kept").iterdir()
    out = capsys.readouterr().out
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert json.loads(out) == kept and str(tmp_path) not in out
    assert kept["command"] == "python -m benchmarks.check_half_billion " + " ".join(words)
    assert (kept["commit"], kept["tokens"], kept["verdict"]) == ("0123abc", 8, "numerics")
    assert {name: stage["verdict"] for name, stage in kept["stages"].items()} == {
        "weights": "exact",
        "layers": "numerics",
    }
    assert kept["machine"]["usable_cores"] >= 1 and kept["versions"]["numpy"]
    assert path.name.startswith(kept["date"][:10]) and path.name.endswith("-cores-check-tiny.json")
    assert all(kept[key] > 0 for key in ("seconds", "cpu_seconds", "peak_rss_bytes"))
