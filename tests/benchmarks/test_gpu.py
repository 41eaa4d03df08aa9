"""The stages that a card is asked for, rehearsed on the emulation."""

import shutil
from pathlib import Path

import pytest

from benchmarks.gpu import main
from karat.ops.device import missing
from karat.ops.native import unavailable_reason

if reason := unavailable_reason() or missing("cuda-emulated"):
    pytest.skip(f"no emulated GPU: {reason}", allow_module_level=True)

STAGES = {
    "driver": [],
    "bits": [],
    "layers": [],
    "decode": ["--shape", "tiny", "--types", "q4_0"],
}


@pytest.mark.long
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage(stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if stage == "driver" and shutil.which("nvcc") is None:
        pytest.skip("no nvcc here")
    out = tmp_path / "found.json"
    assert main([stage, "--device", "cuda-emulated", "--out", str(out), *STAGES[stage]]) == 0
    assert '"card": "emulation"' in out.read_text(encoding="utf-8")
    assert "emulation: " in capsys.readouterr().out
