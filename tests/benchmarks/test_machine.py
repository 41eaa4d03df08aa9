"""The table of a machine: shares are of what they say, and a fall since the processor's last result is said."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import machine
from benchmarks.machine_files import STORED, file_of
from karat.bench.limits import MachineLimits, ReadPattern
from karat.errors import ExecutorError
from karat.models.opening import open_model
from karat.ops.native import supported_isas, unavailable_reason

LIMITS = MachineLimits(
    num_threads=2,
    bandwidth=50.0,
    pattern=ReadPattern("generic", 1, 0, 0),
    fma_peak=400.0,
    fma_by_isa={"generic": 400.0},
    bandwidth_median=40.0,
    fma_median=200.0,
    num_runs=3,
)
DECODE, BATCH = "decode after 128", "decode after 16, batch 16"


def row(workload: str, seconds: float, *, peer: bool = False) -> dict[str, Any]:
    work = {"bytes": None if peer else 60, "linear_flops": 300, "attention_flops": 100}
    return {"workload": workload, "seconds": seconds, "tokens_per_s": 1 / seconds, "version": "1.0", **work}


def line(share: float, times_peer: float | None = None, peer: str | None = "1.0", **other: Any) -> dict[str, Any]:
    base = {"format": "Q4_0", "workload": DECODE, "tokens_per_s": 1.0, "of": "reading", "share": share}
    return base | {"peer": None if times_peer is None else peer, "times_peer": times_peer} | other


def result(date: str = "2026-11-20T10:00:00+00:00", **other: Any) -> dict[str, Any]:
    base = {"kind": "machine", "date": date, "commit": "0123abcdef", "threads": 2, "build": "avx2"}
    return base | {"processor": {"name": "Zen 3", "model": 1}, "lines": [line(0.8, 1.5)]} | other


def kept(folder: Path, name: str, found: dict[str, Any]) -> None:
    (folder / f"{name}-machine-zen-3.json").write_text(json.dumps(found), encoding="utf-8")


def test_shares_are_of_reading_or_of_the_peak_by_what_bounds_the_workload() -> None:
    rows = {
        "Q4_0": [row("prefill 512", 4.0), row("prefill 512", 6.0, peer=True), row(DECODE, 2.0)],
        "BF16": [row(BATCH, 4.0)],
    }
    found = machine.figures(rows, LIMITS)
    assert [(one["format"], one["of"], one["share"], one["times_peer"]) for one in found] == [
        ("Q4_0", "float peak", 400 / 4 / 200, 1.5),
        ("Q4_0", "reading", 60 / 2 / 40, None),
        ("BF16", "float peak", 400 / 4 / 200, None),
    ]


def test_the_last_result_is_of_the_same_processor_threads_and_build(tmp_path: Path) -> None:
    assert machine.last_of(result(), tmp_path) is None
    kept(tmp_path, "1", result("2026-11-21T10:00:00+00:00", mark="last"))
    kept(tmp_path, "2", result("2026-11-20T10:00:00+00:00", mark="earlier"))
    kept(tmp_path, "3", result("2026-11-22T10:00:00+00:00", mark="other", threads=4))
    kept(tmp_path, "4", result("2026-11-22T10:00:00+00:00", mark="other", build="avx512-vnni"))
    kept(tmp_path, "5", result("2026-11-22T10:00:00+00:00", mark="other", processor={"name": "Zen 3", "model": 33}))
    kept(tmp_path, "6", {"kind": "another benchmark, whose name has machine in it"})
    last = machine.last_of(result(), tmp_path)
    assert last is not None and last["mark"] == "last"


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (line(0.73, 1.36), []),  # more than nine tenths of both
        (line(0.9, 2.0), []),
        (line(0.49, 1.5), ["Q4_0, decode after 128: 0.49 of reading, where it had 0.80: 0.61 times that."]),
        (line(0.8, 1.2), ["Q4_0, decode after 128: 1.20 times as fast as 1.0, where it had 1.50: 0.80 times that."]),
        (line(0.8, 1.2, peer="1.1"), []),  # another llama.cpp
        (line(0.8), []),  # none
        (line(0.1, workload="prefill 512"), []),  # not measured last time
    ],
)
def test_a_fall_of_a_tenth_is_said_in_words(now: dict[str, Any], said: list[str]) -> None:
    lines = machine.compared([now], result())
    assert machine.falls(lines) == said
    text = machine.words(result(lines=lines), result())
    if said:
        assert text == ["Fallen by more than a tenth since 2026-11-20 (commit 0123abc):", *said]
    else:
        assert text == ["Nothing has fallen by a tenth since 2026-11-20 (commit 0123abc)."]


def test_a_first_result_says_so() -> None:
    assert machine.words(result(), None) == ["This is the first result of Zen 3 with 2 threads by avx2."]
    assert machine.falls(machine.compared([line(0.1)], None)) == []


@pytest.mark.parametrize("stored", STORED)
def test_a_file_holds_finite_weights_of_its_type(stored: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, stored, "tiny")
    weights = open_model(path).weights
    assert {weight.dtype for weight in weights.values()} >= {stored}
    for weight in weights.values():
        assert np.isfinite(weight.to_array(np.dtype(np.float32))).all(), weight.name
    before = path.stat()
    assert file_of(tmp_path, stored, "tiny") == path and path.stat().st_mtime_ns == before.st_mtime_ns
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


SIZES = ["--shape", "tiny", "-n", "4", "-p", "16", "--repeat", "1", "--buffer-bytes", "1000000", "--threads", "1"]
needs_native = pytest.mark.skipif(unavailable_reason() is not None, reason="no native executor")


@pytest.mark.slow
@needs_native
def test_a_table_from_files_to_a_fall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "commit", lambda: "0123abcdef")
    monkeypatch.setenv("PYTHONPATH", "")  # main adds to it
    given = [*SIZES, "--no-peer", "--folder", str(tmp_path)]
    assert machine.main(given, tmp_path / "results") == 0
    (path,) = (tmp_path / "results").iterdir()
    first = json.loads(path.read_text(encoding="utf-8"))
    written = (tmp_path / "machines.md").read_text(encoding="utf-8")
    assert f", 1 threads, {first['build']}\n" in written and "1 results" in written
    assert first["build"] == supported_isas()[-1] and first["threads"] == 1
    assert [(one["format"], one["of"]) for one in first["lines"]] == [
        (stored, of) for stored in STORED for of in ("float peak", "reading", "float peak")
    ]
    output = capsys.readouterr()
    assert "This is the first result of" in output.out and " s left" in output.err

    for one in first["lines"]:
        one["share"] *= 1000  # it was far faster
    path.write_text(json.dumps(first), encoding="utf-8")
    assert machine.main(given, tmp_path / "results") == machine.FALLEN
    assert "Fallen by more than a tenth since" in capsys.readouterr().out
    assert len(list((tmp_path / "results").iterdir())) == 2


@pytest.mark.slow
@needs_native
def test_a_peer_that_ends_is_said_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As llama.cpp does on machines with AMX, built by gcc 12."""
    monkeypatch.setattr(machine, "commit", lambda: "0123abcdef")
    monkeypatch.setattr(machine, "STORED", ("Q4_0",))
    monkeypatch.setenv("PYTHONPATH", "")
    start = machine.PeerProcess

    def started(load: str, arguments: dict[str, Any]) -> Any:
        if load.endswith("load_peer"):
            raise ExecutorError("the peer's process ended with code -11")
        return start(load, arguments)

    monkeypatch.setattr(machine, "PeerProcess", started)
    (tmp_path / "llama").mkdir()
    given = [*SIZES, "--peer-path", f"llama.cpp={tmp_path / 'llama'}", "--folder", str(tmp_path)]
    assert machine.main(given, tmp_path / "results") == 0
    assert "Q4_0 has no llama.cpp beside it: the peer's process ended with code -11" in capsys.readouterr().out


def test_two_peers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        machine.main(["--peer-path", f"llama.cpp={tmp_path}", f"llama.cpp={tmp_path}"], tmp_path)
    assert "expected one folder of llama.cpp" in capsys.readouterr().err
