"""Commands that take --device say which one computed.

Covers: karat.cli.check, karat.cli.bench, karat.bench.device_limits, karat.server.metrics.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from karat.bench.plot import roofline
from karat.check.trace.reading import read_trace
from karat.cli import main
from karat.cli.bench import as_text
from karat.errors import UsageError
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
    result = json.loads(capsys.readouterr().out)
    assert result["karat"]["device"] == "cuda-emulated"
    limits = result["limits"]
    assert limits.keys() == {"device", "bandwidth_bytes_per_s", "bandwidth_median_bytes_per_s", "runs"}
    assert limits["device"] == "emulation" and limits["runs"] == len(result["rows"])
    for row in result["rows"]:
        assert row["of_fma_peak"] is None and row["bound"] == "bandwidth"
        assert (
            row["of_bandwidth"]
            == row["of_roofline"]
            == pytest.approx(row["bytes_per_s"] / limits["bandwidth_bytes_per_s"])
        )
    text = as_text(result)
    assert "GB/s copied by emulation (best of 2 runs, median " in text and "GFLOP/s (" not in text
    with pytest.raises(UsageError, match="is not measured on a GPU"):
        roofline(result)


def test_bench_has_no_limits_for_layers_on_both(capsys: pytest.CaptureFixture[str]) -> None:
    quick = ("--repeat", "1", "-n", "2", "--batch", "1", "-p", "4", "--context", "0", "--json", "-q")
    assert main(["bench", "--shape", "tiny", *quick, *DEVICE, "--host-layers", "1"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["limits"] is None and result["rows"][0]["of_roofline"] is None


def test_no_plot_of_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--shape", "tiny", *DEVICE, "--plot", "roof.svg"]) == 2
    assert "leave it out, or --device cuda-emulated" in capsys.readouterr().err


def test_throughput_names_its_device(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--shape", "tiny", "--num-prompts", "2", "--prompt-tokens", "4", "--tokens", "2", "-q")
    assert main(["bench", "throughput", *words, *DEVICE, "--host-layers", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == "cuda-emulated"


def test_a_served_device(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--shape", "tiny", "--concurrency", "1", "--requests", "1", "--prompt-tokens", "4", "--tokens", "2", "-q")
    assert main(["bench", "serve", *words, *DEVICE, "--host-layers", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert "--device cuda-emulated --host-layers 1" in result["servers"][0]["command"]
    assert result["points"][0]["cold"]["karat"]["completed"] == 1
    assert main(["bench", "serve", "--url", "http://127.0.0.1:1", *DEVICE]) == 2
    assert "its model is loaded already; give --device to that server" in capsys.readouterr().err


def test_a_trace_has_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_model(tmp_path, num_hidden_layers=2)
    made = []
    for name, words in (("cpu", ()), ("gpu", DEVICE), ("both", (*DEVICE, "--host-layers", "1"))):
        path = tmp_path / f"{name}.trace"
        assert main(["trace", str(folder), "--ids", "1,2,3", "--executor", "auto", "-o", str(path), *words]) == 0
        made.append(read_trace(path))
    for other in made[1:]:
        assert other.arrays.keys() == made[0].arrays.keys()
        for name, array in other.arrays.items():
            np.testing.assert_array_equal(array, made[0].arrays[name], err_msg=name)


def test_metrics_name_their_device() -> None:
    page = Metrics("name").page({}, "cuda-emulated").decode()
    assert 'karat_device{device="cuda-emulated"} 1.0' in page.splitlines()
