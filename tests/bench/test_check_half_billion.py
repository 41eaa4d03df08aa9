"""The benchmark of `karat check` measures a whole process on a model that it wrote."""

import os
from pathlib import Path

import pytest

from benchmarks import check_half_billion
from karat.checkpoint import open_model


def test_a_check_is_measured_on_a_folder_of_random_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    check_half_billion.write_folder(tmp_path, "tiny")
    assert open_model(tmp_path).config["hidden_size"] == 64
    facts = check_half_billion.measure(tmp_path, 24, "weights,logits", "reference")
    assert facts["verdict"] == "numerics" and facts["tokens"] == 24 and list(facts["stages"]) == ["weights", "logits"]
    assert facts["seconds"] > 0 and facts["cpu_seconds"] > 0 and facts["peak_rss_bytes"] > 20 << 20
    with pytest.raises(SystemExit, match="exit code 2"):
        check_half_billion.measure(tmp_path, 24, "nothing", "reference")
