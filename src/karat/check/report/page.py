"""The report of a check: one page that needs nothing else, as a receipt to attach to an issue."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from karat.check.diagnosis.wording import times
from karat.check.replay.finding import LIMIT
from karat.check.replay.forced import Local
from karat.check.report.pictures import attention, by_layer_and_op, by_layer_and_token, chart
from karat.check.session.session import CheckSession
from karat.check.session.stage import Stage, meaning
from karat.check.session.streamed import Results

# What a page must not be given as it is: control characters, half surrogates, and those that reverse text.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Headings, and the facts below them.
_RECEIPT: Mapping[str, Sequence[str]] = {
    "What was checked": ("command", "date", "model", "digest", "logits_digest", "options", "trace", "trace_executor"),
    "Prompt": ("ids_from", "prompt", "seed", "tokens", "token_ids"),
    "Environment": (
        "executor dtype kv_dtype threads kernel_build karat python numpy packages machine cpu cpu_features "
        "usable_cores memory_bytes"
    ).split(),
}
_MILESTONES = ("model.embed_tokens", "layer", "model.norm", "lm_head")
_TOP = 10
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
body { color: #1b1b1b; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem } p { margin: .3rem 0 .6rem }
table { border-collapse: collapse }
th, td { padding: .15rem .6rem; text-align: left; border-bottom: 1px solid #ddd; vertical-align: top }
th { font-weight: 600; white-space: nowrap } td { overflow-wrap: anywhere }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
td.lines { white-space: pre-wrap; font: 13px/1.45 ui-monospace, monospace } .scroll { overflow-x: auto }
td.text { white-space: pre-wrap }
table.dense { font-size: 12px } .dense th, .dense td { padding: .05rem .35rem }
td.other { background: #fae08c }
img.pixels { image-rendering: pixelated; border: 1px solid #ccc; box-sizing: border-box; display: block }
p.axis, figcaption { font-size: 12px; color: #555 } figure { display: inline-block; margin: 0 1rem 1rem 0 }
figure { max-width: 20rem; vertical-align: top } td.exact, td.numerics, td.quantisation { white-space: nowrap }
.exact, .numerics, .quantisation { color: #11632b } .bug { color: #a8071a; font-weight: 600 } .skipped { color: #666 }
.flagged { color: #8a5a00; font-weight: 600 }
svg { width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: #333 }
@media (max-width: 40rem) {
  body { margin: 1rem auto; padding: 0 .6rem } th, td { padding: .15rem .4rem }
  .stages, .stages tbody { display: block } .stages tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid #ddd }
  .stages th, .stages td { border: 0; padding: .1rem .6rem .1rem 0 }
  .stages td.lines { flex: 0 0 100%; padding: 0 0 .4rem }
  .scroll svg { min-width: 40rem }
}
"""


def page(session: CheckSession, stages: Sequence[Stage], facts: Mapping[str, Any]) -> str:
    """A whole HTML document; no script, no request to any network."""
    verdict = facts["verdict"]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'><title>karat check</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>karat check: <span class='{verdict}'>{verdict}</span></h1>",
        *([f"<p>{escape(said)}</p>"] if (said := meaning(verdict, facts["flagged"])) else []),
        *_receipt(facts),
        "<h2>Stages</h2>",
        _stage_table(stages),
    ]
    if session.results is not None:
        parts += _of_run(session, session.results)
    parts += _prompts(stages)
    return "\n".join([*parts, "</body></html>\n"])


def _receipt(facts: Mapping[str, Any]) -> list[str]:
    """Command, model, ids, options and machine: enough to repeat the check."""
    parts = []
    for title, keys in _RECEIPT.items():
        rows = [(key, _words(facts[key])) for key in keys if facts.get(key) not in (None, "", [], {})]
        parts += [f"<h2>{title}</h2>", _table(rows)] if rows else []
    return parts


def _words(value: Any) -> str:
    """A fact in words."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key} {_words(part)}" for key, part in value.items() if part not in (None, [], ""))
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return str(value)


def _prompts(stages: Sequence[Stage]) -> list[str]:
    """Conversations as the template renders them, with their ids."""
    facts = next((stage.facts for stage in stages if stage.name == "tokens"), {})
    rendered = facts.get("rendered") or {}
    rows = [(name, f"{text}\n\n{' '.join(map(str, facts['ids'][name]))}") for name, text in rendered.items()]
    return ["<h2>Conversations as rendered, and their ids</h2>", _table(rows)] if rows else []


def _of_run(session: CheckSession, results: Results) -> list[str]:
    """The results of the run through the layers."""
    graph, findings = session.plan.model.graph, results.findings
    parts = [
        "<h2>Error of each op on its own recorded inputs</h2>",
        f"<p>In multiples of the measured noise floor; beyond {LIMIT:g} it is no rounding.</p>",
        f"<div class='scroll'>{chart(findings, graph)}</div>",
        "<h2>By layer and op</h2>",
        "<p>The same figures. Green is at the floor, yellow at the limit, red beyond it.</p>",
        by_layer_and_op(findings, graph),
        "<h2>By layer and token</h2>",
        by_layer_and_token(findings, graph, results.info.num_tokens),
        "<h2>Attention of flagged heads</h2>",
        "<p>Rows are tokens, columns the keys that they look at.</p>"
        if results.maps
        else "<p>No head was flagged.</p>",
        *(attention(kept) for kept in results.maps),
    ]
    head = ("result", "largest error", "RMS error", "RMS of rounding", "times rounding")
    for other, drifts in results.drift.items():
        rows = [
            (d.name, f"{d.largest:.3g}", f"{d.rms:.3g}", f"{d.floor:.3g}", times(d.ratio))
            for d in drifts
            if graph.nodes[d.name].role in _MILESTONES
        ]
        said = [f"<p>{escape(results.known[other].text)}.</p>"] if other in results.known else []
        parts += [f"<h2>Accumulated from the token ids on, against {escape(other)}</h2>", *said, _grid(head, rows)]
    for other, found in results.forced.items():
        parts += [
            f"<h2>Each op on the inputs that {escape(other)} had</h2>",
            "<p>The largest of all layers: only this op can differ, whatever came before it.</p>",
            _grid(("op", "largest in layer", "largest error", "times rounding"), _by_op(session, found)),
        ]
    return [*parts, *_likeliest(session, results)]


def _by_op(session: CheckSession, found: Sequence[Local]) -> list[tuple[str, str, str, str]]:
    """A row for each op: where it is furthest off."""
    nodes = session.plan.model.graph.nodes
    largest: dict[str, Local] = {}
    for local in found:
        role = nodes[local.name].role
        largest[role] = max(largest.get(role, local), local, key=lambda one: one.ratio)
    return [
        (
            role,
            "" if nodes[one.name].layer is None else str(nodes[one.name].layer),
            f"{one.error:.3g}",
            times(one.ratio),
        )
        for role, one in largest.items()
    ]


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(
        f"<tr><th>{escape(key)}</th><td class=text dir=auto>{escape(visible(value))}</td></tr>" for key, value in rows
    )
    return f"<table>{cells}</table>"


def visible(text: str) -> str:
    """The text with escapes for characters that a page cannot show, or that reverse it; line breaks and tabs stay."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th{' class=n' if i else ''}>{escape(cell)}</th>" for i, cell in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{' class=n' if i else ''}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<div class='scroll'><table><tr>{top}</tr>{body}</table></div>"


def _stage_table(stages: Sequence[Stage]) -> str:
    rows = "".join(
        f"<tr><th>{stage.name}</th><td class='{stage.verdict}'>{stage.verdict}</td>"
        f"<td class=n>{stage.seconds:.1f} s</td>"
        f"<td class=lines>{escape(visible(chr(10).join(stage.lines).strip(chr(10))))}</td></tr>"
        for stage in stages
    )
    return f"<table class='stages'>{rows}</table>"


def _likeliest(session: CheckSession, results: Results) -> list[str]:
    """The likeliest tokens after the prompt, of all sides; those that differ from Karat's are marked."""
    sides = {}
    for side, logits in results.logits.items():
        last = np.asarray(logits[-1], np.float64)
        chances = np.exp(last - last.max())
        sides[side] = (np.argsort(-last, kind="stable")[:_TOP], last, chances / chances.sum())
    ours = sides["ours"][0]
    head = "".join(f"<th colspan=3>{escape(side)}</th>" for side in sides)
    rows = []
    for place in range(len(ours)):
        cells = []
        for order, last, chances in sides.values():
            token = int(order[place])
            known = session.no_tokenizer is None
            text = repr(session.tokenizer.decode([token], skip_special_tokens=False)) if known else ""
            mark = "" if token == ours[place] else " class=other"
            cells.append(
                f"<td{mark}>{escape(visible(text))} <small>{token}</small></td><td class=n>{last[token]:.5f}</td>"
                f"<td class=n>{chances[token]:.4f}</td>"
            )
        rows.append(f"<tr><td class=n>{place + 1}</td>{''.join(cells)}</tr>")
    table = f"<div class='scroll'><table class='dense'><tr><th></th>{head}</tr>{''.join(rows)}</table></div>"
    return ["<h2>Likeliest next tokens</h2>", "<p>Token and id, logit, probability.</p>", table]
