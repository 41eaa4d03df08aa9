"""The roofline (Williams et al., CACM 2009) as an SVG: FLOP/s over FLOPs a byte, both axes logarithmic.

The two limits are the roof, and each workload is a point under it. The distance to the roof is what can still be
gained.
"""

from collections.abc import Mapping
from math import ceil, floor, log10
from typing import Any

from karat.bench.svg import COLOURS, GREY, SOFT_INK, picture, text
from karat.errors import UsageError

_WIDTH, _HEIGHT = 900, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 30, 70, 60
_LEGEND_LINE = 22


def roofline(result: Mapping[str, Any]) -> str:
    """The SVG of a result of karat.bench.session.run_bench. UsageError if no limits were measured."""
    limits, rows = result["limits"], result["rows"]
    if limits is None:
        raise UsageError("a roofline needs the limits, which only the native extension measures; leave --plot out")
    if "fma_peak_flops_per_s" not in limits:
        raise UsageError("a roofline needs the peak of multiply-adds, which is not measured on a GPU; leave --plot out")
    peak, bandwidth = limits["fma_peak_flops_per_s"], limits["bandwidth_bytes_per_s"]
    points = [(row["flops_per_s"] / row["bytes_per_s"], row["flops_per_s"], row) for row in rows]
    ridge = peak / bandwidth
    x = _Axis(
        [ridge / 4, ridge * 4, *(intensity / 1.5 for intensity, _, _ in points), *(i * 1.5 for i, _, _ in points)],
        _LEFT,
        _WIDTH - _RIGHT,
    )
    y = _Axis([peak * 1.5, *(rate / 2 for _, rate, _ in points), bandwidth * x.low], _HEIGHT - _BOTTOM, _TOP)
    parts = [*_frame(result, x, y), *_grid(x, y)]
    roof = [(x.low, bandwidth * x.low), (ridge, peak), (x.high, peak)]
    path = " ".join(f"{x(i):.1f},{y(rate):.1f}" for i, rate in roof)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{SOFT_INK}" stroke-width="2.5"/>')
    parts.append(text(x(x.high) - 6, y(peak) - 8, f"{peak / 1e9:,.0f} GFLOP/s", anchor="end", colour=SOFT_INK))
    parts.append(text(x(ridge) - 10, y(peak) - 8, f"{bandwidth / 1e9:,.1f} GB/s", anchor="end", colour=SOFT_INK))
    for number, (intensity, rate, row) in enumerate(points):
        parts += _point(x, y, number, intensity, rate, min(peak, bandwidth * intensity), row)
    height = _HEIGHT + _LEGEND_LINE * len(points) + 16
    return picture(_WIDTH, height, parts)


class _Axis:
    """A logarithmic axis over whole decades that hold `values`, from pixel `start` to pixel `end`."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        self.first, self.last = floor(log10(min(values))), ceil(log10(max(values)))
        self.low, self.high = 10.0**self.first, 10.0**self.last
        self._start, self._scale = start, (end - start) / (self.last - self.first)

    def __call__(self, value: float) -> float:
        return self._start + (log10(value) - self.first) * self._scale


def _frame(result: Mapping[str, Any], x: _Axis, y: _Axis) -> list[str]:
    machine, threads = result["machine"]["cpu"] or "unknown processor", result["limits"]["threads"]
    below = f"{machine}, {threads} threads; Karat {result['karat']['version']}, {result['date'][:10]}"
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    return [
        text(_LEFT, 28, result["model"], size=17),
        text(_LEFT, 50, below, colour=SOFT_INK),
        text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 14, "FLOPs for each byte read", anchor="middle"),
        f'<g transform="rotate(-90 20 {middle})">{text(20, middle, "GFLOP/s", anchor="middle")}</g>',
    ]


def _grid(x: _Axis, y: _Axis) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for axis, is_x in ((x, True), (y, False)):
        for decade in range(axis.first, axis.last + 1):
            at = axis(10.0**decade)
            ends = (at, _TOP, at, bottom) if is_x else (_LEFT, at, right, at)
            x1, y1, x2, y2 = ends
            parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{GREY}"/>')
            label = f"{10.0 ** (decade if is_x else decade - 9):g}"
            parts.append(
                text(at, bottom + 20, label, anchor="middle") if is_x else text(_LEFT - 8, at + 4, label, anchor="end")
            )
    return parts


def _point(
    x: _Axis, y: _Axis, number: int, intensity: float, rate: float, roof: float, row: Mapping[str, Any]
) -> list[str]:
    """A dot, a dashed line up to the roof, and a line of the legend."""
    at_x, at_y = x(intensity), y(rate)
    colour = COLOURS[number % len(COLOURS)]
    label = f"{row['name']}: {row['tokens_per_s']:,.1f} tok/s, {rate / roof:.0%} of the roof"
    legend_x, legend_y = _LEFT + 6, _HEIGHT + 14 + _LEGEND_LINE * number
    return [
        f'<line x1="{at_x:.1f}" y1="{at_y:.1f}" x2="{at_x:.1f}" y2="{y(roof):.1f}" stroke="{colour}" '
        'stroke-dasharray="3 3"/>',
        f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="5.5" fill="{colour}" stroke="white"/>',
        f'<circle cx="{legend_x}" cy="{legend_y - 4}" r="5.5" fill="{colour}"/>',
        text(legend_x + 12, legend_y, label),
    ]
