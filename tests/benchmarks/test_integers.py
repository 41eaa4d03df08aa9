"""Measuring integers: shares and ratios are what they are called, and a part runs from a file to its result."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import integers
from karat.bench.limits import MachineLimits, ReadPattern
from karat.convert import MIXES
from karat.ops.native import supported_isas, unavailable_reason

LIMITS = MachineLimits(
    num_threads=2,
    bandwidth=50.0,
    pattern=ReadPattern("generic", 1, 0, 0),
    fma_peak=400.0,
    fma_by_isa={"avx2": 100.0, "avx512": 400.0},
    bandwidth_median=40.0,
    fma_median=200.0,
    num_runs=3,
)


def figures(side: str, workload: str, seconds: float, **work: int | None) -> dict[str, Any]:
    none = {"bytes": None, "linear_flops": None, "attention_flops": None}
    return {"side": side, "workload": workload, "seconds": seconds, **none, **work}


def test_ratios_are_of_the_same_build_and_of_other_engines() -> None:
    rows = [
        figures("avx2 int16", "decode after 8", 2.0, bytes=60, linear_flops=1, attention_flops=1),
        figures("avx2 int8", "decode after 8", 3.0, bytes=60, linear_flops=1, attention_flops=1),
        figures("llama.cpp", "decode after 8", 5.0),
        figures("avx2 before", "decode after 8", 4.0),
        figures("generic before", "decode after 8", 7.0),
    ]
    found = integers.ratios(rows[0], rows, LIMITS)
    assert found["beside"] == {"llama.cpp": 2.5, "avx2 before": 2.0}
    assert found["of_reading"] == 60 / 2 / 40  # of the median
    assert found["attention_of_peak"] is None
    assert integers.ratios(rows[3], rows, LIMITS)["beside"] == {}


def test_attention_is_what_a_long_prompt_takes_beyond_its_chunks() -> None:
    def rows(side: str) -> list[dict[str, Any]]:
        return [
            figures(side, "prefill 512", 1.0, bytes=1, linear_flops=100, attention_flops=10),
            figures(side, "prefill 8192", 20.0, bytes=1, linear_flops=1600, attention_flops=760),
        ]

    fastest, other = rows("avx512-vnni int16"), rows("avx2 int16")
    assert integers.ratios(fastest[0], fastest, LIMITS)["attention_of_peak"] is None
    assert integers.ratios(fastest[1], fastest, LIMITS)["attention_of_peak"] == (760 - 160) / (20 - 16) / 200
    assert integers.ratios(other[1], other, LIMITS)["attention_of_peak"] == (760 - 160) / (20 - 16) / 50


def test_every_format_of_a_part_can_be_made() -> None:
    parts = integers.parts(16, 512, 8192)
    assert all(name in MIXES for part in parts.values() for name in part.formats)
    assert {name: integers.shape_of(name) for name in ("Q4_0", "Q4_K_M")} == {
        "Q4_0": "qwen2.5-0.5b",
        "Q4_K_M": "qwen2.5-1.5b",
    }


@pytest.mark.skipif(unavailable_reason() is not None, reason="no native executor")
def test_a_part_from_a_file_to_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.integers.commit", lambda: "0123abc")
    monkeypatch.setenv("PYTHONPATH", "")  # main adds to it
    sizes = ["--shape", "tiny", "-n", "2", "-p", "8", "--long", "16", "--repeat", "1", "--buffer-bytes", "1000000"]
    chosen = ["--only", "decode", "--formats", "Q4_0", "--isa", supported_isas()[-1], "--peers", "--threads", "1"]
    integers.main([*sizes, *chosen, "--folder", str(tmp_path)], tmp_path / "results")
    (path,) = (tmp_path / "results").iterdir()
    assert path.name.endswith("-integers-decode.json")
    result = json.loads(path.read_text(encoding="utf-8"))
    build = supported_isas()[-1]
    has_goal = build == "avx2" or build.endswith(("vnni", "intel"))
    assert [(line["build"], line["beside"]) for line in result["goals"]] == [(build, "of_reading")] * has_goal
    assert {row["side"].split()[1] for row in result["formats"]["Q4_0"]} == {"int16"}
    output = capsys.readouterr()
    assert "| Q4_0 | decode after 8 |" in output.out
    assert " s left" in output.err


def test_unknown_parts_and_folders_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for options, named in (
        (["--only", "sleep"], "sleep: expected some of prefill"),
        (["--peer-path", "x=/"], "x=/"),
        (["--only", "real"], "give its --model FILE"),
    ):
        with pytest.raises(SystemExit):
            integers.main(options)
        assert named in capsys.readouterr().err
