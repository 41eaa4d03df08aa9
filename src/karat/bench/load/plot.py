"""Latency against throughput as an SVG: a line for each server, a point for each load. Median solid, 99 % dashed."""

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Any

from karat.bench.svg import COLOURS, GREY, SOFT_INK, picture, text
from karat.errors import UsageError

_WIDTH, _TOP, _PANEL, _GAP = 900, 84, 260, 66
_LEFT, _RIGHT = 84, 40
_PANELS = (("ttft_s", "time to the first token, ms"), ("tpot_s", "time per further token, ms"))
_STYLES = (("p50", ""), ("p99", ' stroke-dasharray="5 4"'))
_Point = tuple[float, float, str]  # tokens a second, milliseconds, the load


def latency_plot(result: Mapping[str, Any]) -> str:
    """The SVG of a result of `karat bench serve`. UsageError if no request of it was answered."""
    lines = {
        (panel, rank): {name: _line(result["points"], name, panel, rank) for name in _names(result)}
        for panel, _ in _PANELS
        for rank, _ in _STYLES
    }
    every = [point for found in lines.values() for line in found.values() for point in line]
    if not every:
        raise UsageError("no request was answered, so there is nothing to draw; leave --plot out")
    x = _LoadAxis(0, 1.08 * max(rate for rate, _, _ in every), _LEFT, _WIDTH - _RIGHT)
    parts = _heading(result)
    for number, (panel, title) in enumerate(_PANELS):
        top = _TOP + number * (_PANEL + _GAP)
        shown = [point for rank, _ in _STYLES for line in lines[panel, rank].values() for point in line]
        if shown:
            parts += _frame(x, y := _LogAxis([ms for _, ms, _ in shown], top + _PANEL, top), top, title)
            for rank, style in _STYLES:
                for index, line in enumerate(lines[panel, rank].values()):
                    parts += _drawn(x, y, line, COLOURS[index % len(COLOURS)], style, says_load=rank == "p50")
    bottom = _TOP + len(_PANELS) * (_PANEL + _GAP) - _GAP
    parts.append(text((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 40, "tokens of answers a second", anchor="middle"))
    return picture(_WIDTH, bottom + 56, parts)


def _names(result: Mapping[str, Any]) -> list[str]:
    return [server["name"] for server in result["servers"]]


def _line(points: Sequence[Mapping[str, Any]], name: str, panel: str, rank: str) -> list[_Point]:
    found = []
    for point in points:
        figures = point["cold"][name]
        if figures[panel] and figures["output_tokens_per_s"]:
            load = f"{point['concurrency']}" if point["rate"] is None else f"{point['rate']:.3g}/s"
            found.append((figures["output_tokens_per_s"], 1000 * figures[panel][rank], load))
    return found


class _LoadAxis:
    """From pixel `start` to pixel `end`, linear, with about six round ticks."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._scale, self._start = low, (end - start) / (high - low), start
        step = 10 ** floor(log10((high - low) / 5))
        step *= next(times for times in (1, 2, 5, 10) if (high - low) / (step * times) <= 6)
        self.ticks = [step * i for i in range(ceil(low / step), floor(high / step) + 1)]

    def __call__(self, value: float) -> float:
        return self._start + (value - self._low) * self._scale


class _LogAxis:
    """Logarithmic, with ticks at 1, 2 and 5 of each decade."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = log10(min(values) / 1.3), log10(max(values) * 1.3)
        self._low, self._scale, self._start = low, (end - start) / (high - low), start
        ticks = [times * 10.0**decade for decade in range(floor(low), ceil(high)) for times in (1, 2, 5)]
        self.ticks = [tick for tick in ticks if low <= log10(tick) <= high]

    def __call__(self, value: float) -> float:
        return self._start + (log10(value) - self._low) * self._scale


def _heading(result: Mapping[str, Any]) -> list[str]:
    machine = result["machine"]["cpu"] or "unknown processor"
    parts = [
        text(_LEFT, 28, result["model"] or "", size=17),
        text(_LEFT, 50, f"{result['about']}; {machine}, {result['date'][:10]}", colour=SOFT_INK),
    ]
    at = _LEFT + 6.0
    for index, name in enumerate(_names(result)):
        parts.append(f'<circle cx="{at:.1f}" cy="68" r="5.5" fill="{COLOURS[index % len(COLOURS)]}"/>')
        parts.append(text(at + 12, 72, name))
        at += 34 + 7.5 * len(name)
    parts.append(text(_WIDTH - _RIGHT, 72, "solid: median; dashed: 99 %", anchor="end", colour=SOFT_INK))
    return parts


def _frame(x: _LoadAxis, y: _LogAxis, top: float, title: str) -> list[str]:
    bottom, right = top + _PANEL, _WIDTH - _RIGHT
    parts = []
    for tick in x.ticks:
        at = x(tick)
        parts.append(f'<line x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{bottom}" stroke="{GREY}"/>')
        parts.append(text(at, bottom + 18, f"{tick:g}", anchor="middle"))
    for tick in y.ticks:
        at = y(tick)
        parts.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" stroke="{GREY}"/>')
        parts.append(text(_LEFT - 8, at + 4, f"{tick:g}", anchor="end"))
    middle = (top + bottom) / 2
    label = text(24, middle, title, anchor="middle")
    return [*parts, f'<g transform="rotate(-90 24 {middle})">{label}</g>']


def _drawn(x: _LoadAxis, y: _LogAxis, line: Sequence[_Point], colour: str, style: str, *, says_load: bool) -> list[str]:
    places = [(x(rate), y(ms), load) for rate, ms, load in line]
    parts = []
    for is_rate in (False, True):  # loads of one kind are joined
        of_kind = [f"{at_x:.1f},{at_y:.1f}" for at_x, at_y, load in places if load.endswith("/s") == is_rate]
        parts.append(f'<polyline points="{" ".join(of_kind)}" fill="none" stroke="{colour}" stroke-width="2"{style}/>')
    for at_x, at_y, load in places:
        parts.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="4" fill="{colour}" stroke="white"/>')
        if says_load:
            parts.append(text(at_x, at_y + 18, load, anchor="middle", colour=colour, size=11))
    return parts
