"""The report of a check: one page that needs nothing else, as a receipt to attach to an issue."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from karat.check.graph import Graph
from karat.check.replay import LIMIT, Finding
from karat.check.stage import Stage
from karat.check.stages import Checker
from karat.check.wording import times

_MILESTONES = ("model.embed_tokens", "layer", "model.norm", "lm_head")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
body { color: #1b1b1b; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse }
th, td { padding: .15rem .6rem; text-align: left; border-bottom: 1px solid #ddd; vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums } .scroll { overflow-x: auto }
.exact, .numerics, .quantisation { color: #11632b } .bug { color: #a8071a; font-weight: 600 } .skipped { color: #666 }
svg text { font: 11px system-ui, sans-serif; fill: #333 }
"""


def page(checker: Checker, stages: Sequence[Stage], facts: Mapping[str, Any]) -> str:
    """A whole HTML document; no script, no request to any network."""
    verdict = facts["verdict"]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'><title>karat check</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>karat check: <span class='{verdict}'>{verdict}</span></h1>",
        _table(
            [(key, str(facts[key])) for key in ("model", "digest", "karat", "executor", "dtype", "kv_dtype", "machine",
                                                "python", "numpy", "tokens", "seed")]
        ),
        "<h2>Stages</h2>",
        _stage_table(stages),
    ]  # fmt: skip
    if checker.results is not None:
        graph = checker.plan.model.graph
        parts += [
            "<h2>Error of each op on its own recorded inputs</h2>",
            f"<p>In multiples of the measured noise floor (the line at 1); beyond {LIMIT:g} it is no rounding.</p>",
            _chart(checker.results.findings, graph),
            "<h2>By layer and op</h2>",
            _heat_map(checker.results.findings, graph),
        ]
    if checker.results is not None:
        rows = [
            (d.name, f"{d.largest:.3g}", f"{d.rms:.3g}", f"{d.floor:.3g}", times(d.ratio))
            for d in checker.results.drift["float64"]
            if checker.plan.model.graph.nodes[d.name].role in _MILESTONES
        ]
        head = ("result", "largest error", "RMS error", "RMS of rounding", "times rounding")
        parts += ["<h2>Accumulated from the token ids on</h2>", _grid(head, rows)]
    parts += [_likeliest(checker), "</body></html>\n"]
    return "\n".join(parts)


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in rows)
    return f"<table>{cells}</table>"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td{' class=n' if i else ''}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<div class='scroll'><table><tr>{top}</tr>{body}</table></div>"


def _stage_table(stages: Sequence[Stage]) -> str:
    rows = "".join(
        f"<tr><th>{stage.name}</th><td class='{stage.verdict}'>{stage.verdict}</td>"
        f"<td class=n>{stage.seconds:.1f} s</td>"
        f"<td>{'<br>'.join(escape(line) for line in stage.lines)}</td></tr>"
        for stage in stages
    )
    return f"<table>{rows}</table>"


def _chart(findings: Sequence[Finding], graph: Graph) -> str:
    """One dot a result, in the order of computation; the height is the logarithm of the ratio."""
    width, height, left = 1000, 260, 60
    largest = max([100.0, *(f.ratio for f in findings if math.isfinite(f.ratio))])
    low, high = -2.0, math.log10(largest) + 0.3

    def y(ratio: float) -> float:
        log = high if math.isinf(ratio) else max(low, math.log10(max(ratio, 1e-9)))
        return height - 20 - (log - low) / (high - low) * (height - 40)

    lines = []
    for ratio, colour in ((1.0, "#11632b"), (LIMIT, "#a8071a")):
        lines.append(f"<line x1='{left}' x2='{width}' y1='{y(ratio):.1f}' y2='{y(ratio):.1f}' stroke='{colour}'/>")
    for power in range(int(low), int(high) + 1):
        lines.append(f"<text x='4' y='{y(10.0**power) + 4:.1f}'>10^{power}</text>")
    dots = []
    for index, finding in enumerate(findings):
        x = left + 8 + index * (width - left - 16) / max(1, len(findings) - 1)
        colour = "#a8071a" if finding.is_wrong else "#2457a6"
        title = escape(f"{finding.name}: {times(finding.ratio)}, error {finding.error:.3g}")
        dots.append(
            f"<circle cx='{x:.1f}' cy='{y(finding.ratio):.1f}' r='3' fill='{colour}'><title>{title}</title></circle>"
        )
    return f"<svg viewBox='0 0 {width} {height}' role='img' aria-label='errors'>{''.join(lines)}{''.join(dots)}</svg>"


def _heat_map(findings: Sequence[Finding], graph: Graph) -> str:
    """A cell for each op of each layer: green at rounding, red beyond the limit."""
    ratios = {(graph.nodes[f.name].layer, graph.nodes[f.name].role): f.ratio for f in findings}
    roles = list(dict.fromkeys(role for layer, role in ratios if layer is not None))
    layers = sorted({layer for layer, _ in ratios if layer is not None})
    head = "<tr><th>op</th>" + "".join(f"<th>{layer}</th>" for layer in layers) + "</tr>"
    rows = []
    for role in roles:
        cells = []
        for layer in layers:
            ratio = ratios.get((layer, role))
            if ratio is None:
                cells.append("<td></td>")
                continue
            share = 1.0 if math.isinf(ratio) else min(1.0, max(0.0, math.log10(max(ratio, 0.1)) + 1) / 2)
            cells.append(
                f"<td class=n style='background: hsl({120 - 120 * share:.0f} 70% 85%)'>{escape(times(ratio))}</td>"
            )
        rows.append(f"<tr><th>{escape(role)}</th>{''.join(cells)}</tr>")
    return f"<div class='scroll'><table>{head}{''.join(rows)}</table></div>"


def _likeliest(checker: Checker) -> str:
    """The likeliest tokens after the last one of the prompt."""
    if checker.results is None:
        return ""
    last = np.asarray(checker.results.logits["ours"][-1], np.float64)
    chances = np.exp(last - last.max())
    chances /= chances.sum()
    tokenizer = checker.tokenizer
    rows = [
        (repr(tokenizer.decode([int(i)], skip_special_tokens=False)), str(i), f"{last[i]:.6f}", f"{chances[i]:.4f}")
        for i in np.argsort(-last)[:10]
    ]
    return "<h2>Likeliest next tokens</h2>" + _grid(("token", "id", "logit", "probability"), rows)
