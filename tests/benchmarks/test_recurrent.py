"""Shapes with recurrent layers beside llama.cpp: a run on a small one, and what its table says."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import recurrent
from karat.bench import shape_configs
from karat.bench.shape_configs import shape_config
from karat.bench.shapes import write_shape
from karat.ops.native import unavailable_reason

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

NAME = "qwen3.5-35b-a3b-cut"
SMALL = {"vocab_size": 512, "hidden_size": 256, "num_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.slow
def test_a_run_on_a_small_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Whole, but for llama.cpp. Shares are those of the seconds beside them, of all three delta nets."""
    monkeypatch.setitem(shape_configs.CONFIGS, NAME, shape_config(NAME) | SMALL)
    monkeypatch.setattr(recurrent, "BEYOND_CACHES", 8 << 20)
    given = ["--shape", NAME, "--weights", "q8_0", "--no-peer", "--repeat", "1", "-n", "2", "-p", "32", "--threads"]
    write_shape(tmp_path / f"{NAME}-q8_0.gguf", NAME, "q8_0")
    options = [*given, "1", "--folder", str(tmp_path), "--buffer-bytes", str(1 << 22)]
    recurrent.main(options, tmp_path / "results")
    (file,) = (tmp_path / "results").iterdir()
    result = json.loads(file.read_text())
    assert [row["workload"] for row in result["rows"]] == ["prefill 32", "decode after 32"]
    assert all(row["times_peer"] is None and row["of_reading"] > 0 for row in result["rows"])
    found = result["shares"]
    assert found["delta_nets"] == 3 and found["prefill_s"] > 0
    for name in ("delta_rule", "causal_conv"):
        part = found[name]
        assert part["of_prefill"] == part["prefill_s"] / found["prefill_s"]
        assert part["of_decode_without_head"] == part["decode_s"] / found["decode_without_head_s"]
    said = capsys.readouterr().out
    assert "decode after 32:" in said and f"delta_rule: {found['delta_rule']['of_prefill']:.1%} of prefill" in said
