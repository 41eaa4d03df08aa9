"""Commands that take --device say which one computed.

Covers: karat.cli.check, karat.cli.bench, karat.server.metrics.
"""

import json
from pathlib import Path

import pytest

from karat.cli import main
from karat.ops.device import missing
from karat.ops.native import unavailable_reason
from karat.server.metrics import Metrics
from tests.engine.tiny import write_model

if reason := unavailable_reason() or missing("cuda-emulated"):
    pytest.skip(f"no emulated GPU: {reason}", allow_module_level=True)

DEVICE = ("--device", "cuda-emulated")


def test_check_has_a_line_for_each_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The emulation's own settings, the same on the CPU, and layers on both."""
    folder = write_model(tmp_path, num_hidden_layers=2)
    assert main(["check", str(folder), "--invariance", "--tokens", "5", *DEVICE]) == 0
    lines = capsys.readouterr().out.splitlines()
    for setting in ("on cuda-emulated, all together", "on the CPU", "1 of 2 layers on the CPU"):
        (line,) = (line for line in lines if line.split("  ")[0] == setting)
        assert line.endswith("  same")
    assert lines[-1] == "verdict: exact"


def test_bench_names_its_device(capsys: pytest.CaptureFixture[str]) -> None:
    quick = ("--repeat", "1", "-n", "2", "--batch", "1", "-p", "4", "--context", "0", "--json", "-q")
    assert main(["bench", "--shape", "tiny", *quick, *DEVICE]) == 0
    assert json.loads(capsys.readouterr().out)["karat"]["device"] == "cuda-emulated"


def test_metrics_name_their_device() -> None:
    page = Metrics("name").page({}, "cuda-emulated").decode()
    assert 'karat_device{device="cuda-emulated"} 1.0' in page.splitlines()
