"""The page of all machines: it is that of the results, and each machine has its last table."""

import json
from pathlib import Path
from typing import Any

from benchmarks.machine_page import page, table
from benchmarks.record import RESULTS


def line(share: float, **other: Any) -> dict[str, Any]:
    known = {"format": "Q4_0", "workload": "decode after 128", "tokens_per_s": 1.0, "of": "reading", "share": share}
    return known | {"was_share": None, "times_peer": None, "was_times_peer": None} | other


def keep(folder: Path, name: str, date: str, share: float, **other: Any) -> None:
    kept = {
        "kind": "machine",
        "date": f"{date}T10:00:00+00:00",
        "commit": "0123456789",
        "processor": {"name": "Zen 3", "model": 1},
        "threads": 2,
        "build": "avx2",
        "reading_bytes_per_s": share * 1e11,
        "float_peak_flops_per_s": 2e11,
        "lines": [line(share), line(0.1, workload="prefill 512", of="float peak")],
    }
    (folder / f"{name}-machine-zen.json").write_text(json.dumps(kept | other), encoding="utf-8")


def test_the_page_is_that_of_the_results() -> None:
    """If it is not: python -m benchmarks.machine_page > benchmarks/machines.md"""
    assert (RESULTS.parent / "machines.md").read_text(encoding="utf-8") == page(RESULTS)


def test_each_machine_has_its_last_table_and_the_range_of_its_decode(tmp_path: Path) -> None:
    keep(tmp_path, "a", "2026-11-22", 0.3)
    keep(tmp_path, "b", "2026-11-20", 0.5)
    keep(tmp_path, "c", "2026-11-21", 0.9, build="generic")
    keep(tmp_path, "d", "2026-11-23", 0.9, kind="another benchmark, whose name has machine in it")
    head, avx2, generic = page(tmp_path).split("\n## ")
    assert head.startswith("# Machines")
    assert avx2.startswith(
        "Zen 3, 2 threads, avx2\n\n[2026-11-22](results/a-machine-zen.json), commit 01234567: reading 30.0"
    )
    assert "| 0.30 of reading |" in avx2 and "| 0.50 of reading |" not in avx2
    assert "Decode in 2 results, of reading: Q4_0 0.30 to 0.50. Reading gave 30.0 to 50.0 GB/s." in avx2
    assert generic.startswith("Zen 3, 2 threads, generic") and "Decode in 1 results" in generic


def test_the_table_shows_what_was() -> None:
    was = {"was_share": 0.8, "times_peer": 1.5, "was_times_peer": 1.25}
    shown = table([line(0.49, **was), line(0.5, of="float peak", format="BF16")])
    assert "| Q4_0 | decode after 128 | 1.0 | 0.49 of reading | 0.80 | 1.50 | 1.25 |" in shown
    assert "| BF16 | decode after 128 | 1.0 | 0.50 of float peak | – | – | – |" in shown
