"""Stage logits: differences, flips of the likeliest token, and perplexity."""

import numpy as np

from karat.check.diagnosis.wording import times
from karat.check.replay.drift import DRIFT_LIMIT, Drift
from karat.check.session import agreement
from karat.check.session.other_side import label, rounding_note, unrounded_drift
from karat.check.session.session import CheckSession
from karat.check.session.stage import Stage, Verdict
from karat.check.trace.format import rows_of


def run(session: CheckSession) -> Stage:
    """Differences, flips of the likeliest token, and perplexity, against float64 and every other side."""
    results, rounding = session.run(), session.rounding
    ours = results.logits["ours"]
    facts = agreement.logit_facts(ours, results.logits["float64"], session.shown)
    lines = agreement.logit_lines("float64", facts)
    comparable = np.isfinite(facts["largest"])
    for other, theirs in results.logits.items():
        if other in ("ours", "float64"):
            continue
        known = results.known.get(other)
        shared = slice(None) if known is None else rows_of(results.info, "lm_head") < known.first
        if known is not None:
            lines.append(known.text)
        if not len(ours[shared]):
            continue
        against = agreement.logit_facts(ours[shared], theirs[shared], session.shown)
        lines += agreement.logit_lines(label(other), against)
        facts[f"against_{other}"] = against
        comparable &= np.isfinite(against["largest"])
        head = _head(results.drift.get(other, ()))
        if head > DRIFT_LIMIT and (again := unrounded_drift(session, other)):
            head = _head(again)
        if head > DRIFT_LIMIT:
            lines.append(f"that is {times(head)} what rounding does to a whole run{rounding_note(results, other)}")
            comparable &= other in results.spread_beside
    rows = rows_of(results.info, "lm_head")
    if bad := agreement.not_finite(ours, rows):
        lines.insert(0, bad)
    if any(row + 1 < len(session.ids) for row in rows):
        shown = {side: agreement.text_perplexity(logits, rows, session.ids) for side, logits in results.logits.items()}
        facts["perplexity"] = shown
        lines.append(f"perplexity of {_text(session)}: " + ", ".join(f"{s} {value:.6g}" for s, value in shown.items()))
    explained = all(flip.startswith("flip") for flip in facts["flips"])
    ok = comparable and explained and _head(results.drift["float64"]) <= DRIFT_LIMIT
    verdict: Verdict = "exact" if facts["largest"] == 0 else rounding
    if session.plan.original is not None:
        far = agreement.logit_facts(ours, agreement.reference_logits(session.plan.original, results.info))
        facts["against_original"] = far
        lines.append(
            f"against the original weights in float64: KL {far['mean_kl']:.2g} nats a token, at most "
            f"{far['kl']:.2g}; likeliest token equal in {far['top1']} of {far['rows']} rows"
        )
    return Stage("logits", verdict if ok else "bug", lines, facts)


def _text(session: CheckSession) -> str:
    return "the random ids" if session.drawn else "the trace's ids" if session.has_trace else "the text"


def _head(drifts: "list[Drift] | tuple[()]") -> float:
    """The accumulated error of the logits."""
    return next((drift.ratio for drift in drifts if drift.name == "lm_head"), 0.0)
