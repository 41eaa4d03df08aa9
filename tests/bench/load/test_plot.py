"""The picture: valid XML, a point for each load, right of another where throughput is higher, above where it is slower.

Covers: karat.bench.load.plot, karat.bench.svg.
"""

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from karat.bench.load.plot import latency_plot
from karat.errors import UsageError


def point(load: int | float, rates: dict[str, float], scale: float = 1) -> dict[str, Any]:
    is_rate = isinstance(load, float)
    cold = {
        name: {
            "output_tokens_per_s": rate,
            "ttft_s": {"p50": scale * rate / 1000, "p99": scale * rate / 100},
            "tpot_s": {"p50": scale * rate / 10000, "p99": scale * rate / 1000},
        }
        for name, rate in rates.items()
    }
    return {"concurrency": None if is_rate else load, "rate": load if is_rate else None, "cold": cold}


def result(points: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    return {
        "model": "a <model>",
        "about": "prompts",
        "date": "2026-01-01",
        "machine": {"cpu": None},
        "servers": [{"name": name} for name in names],
        "points": points,
    }


def places(svg: str, load: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(rf'<text x="([\d.]+)" y="([\d.]+)"[^>]*>{load}</text>', svg)]


def test_points_are_where_their_figures_are() -> None:
    svg = latency_plot(result([point(1, {"k": 100}), point(16, {"k": 900}), point(2.5, {"k": 500})], ["k"]))
    ElementTree.fromstring(svg)
    assert "a &lt;model&gt;" in svg and svg.count('r="4"') == 3 * 2 * 2
    (one, below), (many, _), (middle, _) = places(svg, "1"), places(svg, "16"), places(svg, "2.5/s")
    assert one[0] < middle[0] < many[0] and one[1] > middle[1] > many[1] and below[1] > one[1]


def test_two_servers_have_two_colours_and_a_failed_load_no_point() -> None:
    points = [point(1, {"a": 100, "b": 50}), point(2, {"a": 200, "b": 80})]
    points[1]["cold"]["b"] |= {"ttft_s": None, "tpot_s": None}
    svg = latency_plot(result(points, ["a", "b"]))
    assert svg.count('r="4"') == (2 + 1) * 2 * 2 and "#0b6bcb" in svg and "#c4420f" in svg


def test_nothing_to_draw() -> None:
    points = [point(1, {"a": 100})]
    points[0]["cold"]["a"] |= {"ttft_s": None, "tpot_s": None}
    with pytest.raises(UsageError, match="nothing to draw"):
        latency_plot(result(points, ["a"]))
