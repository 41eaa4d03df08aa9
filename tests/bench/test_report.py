"""Figures from samples, checked by hand; and the picture, read back.

Covers: karat.bench.plot.
"""

import xml.etree.ElementTree as ET

import pytest

from karat.bench.accounting import TokenWork
from karat.bench.limits import MachineLimits, ReadPattern
from karat.bench.plot import roofline
from karat.bench.report import limits_object, peer_row, row
from karat.bench.sides import Sample
from karat.bench.workloads import Series, Workload
from karat.errors import UsageError

LIMITS = MachineLimits(2, 20e9, ReadPattern("avx2", 4, 0, 0), 300e9, {"generic": 2e9, "avx2": 300e9}, 18e9, 290e9, 7)
DECODE = Workload("decode", 128, batch=4, gen_tokens=2)


def sample(seconds: float, *, num_bytes: int = 0, flops: int = 0, model_s: float = 0.0) -> Sample:
    return Sample(seconds, model_s, TokenWork(weight_bytes=num_bytes, linear_flops=flops))


def test_a_row() -> None:
    usual = sample(0.1, num_bytes=10**9, flops=10**9, model_s=0.09)
    slow = sample(0.2, num_bytes=10**9, flops=10**9, model_s=0.1)
    facts = row(DECODE, Series([[usual, slow], [usual, usual]]), LIMITS)
    assert facts["tokens_per_s"] == pytest.approx(40)  # four sequences, 0.1 s
    assert facts["turn_seconds"] == pytest.approx([0.15, 0.1])
    assert (facts["tokens_per_s_min"], facts["tokens_per_s_max"]) == pytest.approx((4 / 0.15, 40))
    assert facts["bytes_per_s"] == pytest.approx(1e10) and facts["of_bandwidth"] == pytest.approx(0.5)
    assert facts["flops_per_s"] == pytest.approx(1e10) and facts["of_fma_peak"] == pytest.approx(1 / 30)
    assert facts["bound"] == "bandwidth" and facts["of_roofline"] == pytest.approx(0.5)
    assert facts["overhead"] == pytest.approx(0.1)
    assert facts["weight_bytes"] == 10**9 and facts["peer"] is None


def test_a_prefill_counts_its_prompt_and_may_be_bound_by_arithmetic() -> None:
    series = Series([[sample(1.0, num_bytes=10**9, flops=240 * 10**9, model_s=1.0)]])
    facts = row(Workload("prefill", 512), series, LIMITS)
    assert facts["tokens_per_s"] == 512 and facts["bound"] == "fma"
    assert facts["of_roofline"] == facts["of_fma_peak"] == pytest.approx(0.8)


def test_without_limits_there_are_no_shares() -> None:
    facts = row(DECODE, Series([[sample(1.0, num_bytes=1)]]), None)
    assert [facts[key] for key in ("of_bandwidth", "of_fma_peak", "of_roofline", "bound")] == [None] * 4


def test_the_ratio_is_taken_turn_by_turn() -> None:
    karat = Series([[sample(1.0)], [sample(2.0)], [sample(1.0)]])
    peer = Series([[sample(3.0)], [sample(3.0)], [sample(2.0)]])
    facts = peer_row(Workload("prefill", 10), karat, peer)
    assert (facts["ratio"], facts["ratio_min"], facts["ratio_max"]) == (2.0, 1.5, 3.0)
    assert facts["tokens_per_s"] == pytest.approx(10 / 3)


def result(rows: list[tuple[float, float]]) -> dict[str, object]:
    """Of rows (FLOP/s, bytes/s)."""
    return {
        "model": "<m> & co",
        "machine": {"cpu": None},
        "karat": {"version": "1"},
        "date": "2026-01-02T03:04:05",
        "limits": limits_object(LIMITS),
        "rows": [
            {"name": f"row {i}", "tokens_per_s": 5.0, "flops_per_s": flops, "bytes_per_s": bandwidth}
            for i, (flops, bandwidth) in enumerate(rows)
        ],
    }


@pytest.mark.parametrize("rows", [[(60e9, 17e9), (240e9, 1e9)], [(1e6, 1e3)], [(299e9, 100e9)] * 12])
def test_every_point_is_in_the_picture_below_its_roof(rows: list[tuple[float, float]]) -> None:
    root = ET.fromstring(roofline(result(rows)))
    name = "{http://www.w3.org/2000/svg}"
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    dots = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{name}circle")]
    assert len(dots) == 2 * len(rows), "a point and its line in the legend"
    assert all(0 < x < width and 0 < y < height for x, y in dots)
    (line,) = root.iter(f"{name}polyline")
    roof = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    (left, low), (ridge, peak), (right, level) = roof
    assert peak == level and left < ridge < right and low > peak
    for (x, y), (flops, bandwidth) in zip(dots[::2], rows, strict=True):
        assert y >= peak and left <= x <= right
        assert (x > ridge) == (flops / bandwidth > LIMITS.fma_peak / LIMITS.bandwidth)
    text = "".join(root.itertext())
    assert "<m> & co" in text and "20.0 GB/s" in text and "300 GFLOP/s" in text and "2 threads" in text


def test_what_reaches_both_limits_is_at_the_corner_of_the_roof() -> None:
    root = ET.fromstring(
        roofline(result([(LIMITS.fma_peak, LIMITS.bandwidth), (LIMITS.bandwidth * 2, LIMITS.bandwidth)]))
    )
    name = "{http://www.w3.org/2000/svg}"
    corner, low = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{name}circle")][::2]
    (line,) = root.iter(f"{name}polyline")
    left, ridge, _ = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert corner == ridge
    slope = (ridge[1] - left[1]) / (ridge[0] - left[0])
    assert low[1] == pytest.approx(
        left[1] + slope * (low[0] - left[0]), abs=0.3
    )  # on the slanted part, at 2 FLOPs a byte


def test_without_limits_there_is_no_roof() -> None:
    with pytest.raises(UsageError, match="native extension"):
        roofline(result([]) | {"limits": None})
