"""The stages of `karat check` that judge the run through the layers: every op, and the logits."""

from typing import Any

import numpy as np

from karat.check.diagnosis.wording import diagnosis_lines, times
from karat.check.replay.drift import DRIFT_LIMIT, Drift
from karat.check.session import agreement
from karat.check.session.session import Session
from karat.check.session.stage import Stage, Verdict
from karat.check.session.streamed import Results
from karat.check.trace.format import rows_of

_LABELS = {"trace": "the trace"}


def label(other: str) -> str:
    """The other side in a sentence."""
    return _LABELS.get(other, other)


def layers_stage(session: Session) -> Stage:
    """Each op on its own inputs, and what has added up against float64 and every other side."""
    results, graph = session.run(), session.plan.model.graph
    diagnosis = results.diagnosis
    worst = max(results.findings, key=lambda f: f.ratio)
    drift = max(results.drift["float64"], key=lambda d: d.ratio)
    lines = diagnosis_lines(diagnosis, graph, results.info)[2:] if not diagnosis.is_healthy else [
        f"{len(results.findings)} results, each re-run in float64 from its recorded inputs: at most "
        f"{times(worst.ratio)} the noise floor ({worst.name})",
        f"accumulated from the token ids on: at most {times(drift.ratio)} ({drift.name})",
    ]  # fmt: skip
    exact = all(finding.exact for finding in results.findings)
    right = diagnosis.is_healthy and np.isfinite(drift.ratio)
    verdict: Verdict = "bug" if not right else "exact" if exact else session.rounding
    facts: dict[str, Any] = {"worst": worst.name, "ratio": worst.ratio, "drift": drift.ratio}
    for other, drifts in results.drift.items():
        if other == "float64":
            continue
        lines += [results.known[other].text] if other in results.known else []
        far = max(drifts, key=lambda d: d.ratio)
        first = next((d for d in drifts if not d.ratio <= DRIFT_LIMIT), None)
        facts[f"against_{other}"] = far.ratio
        lines.append(f"against {label(other)}: at most {times(far.ratio)} ({far.name})")
        if first is not None and (again := _unrounded(session, other)):
            # Their cache rounds nothing, and ours does: compared on a cache that does not.
            far = max(again, key=lambda d: d.ratio)
            first = next((d for d in again if not d.ratio <= DRIFT_LIMIT), None)
            lines[-1] += f"; on a {session.dtype} cache, as {label(other)} has it, {times(far.ratio)} ({far.name})"
        if first is not None:
            lines.append(
                f"   {label(other)} is left first at {first.name}: off by {first.largest:.3g}{_weight(results, other)}"
            )
            facts[f"first_against_{other}"] = first.name
            verdict = verdict if other in results.spread_beside else "bug"
    for other, found in results.forced.items():
        far_op = max(found, key=lambda local: local.ratio)
        facts[f"fed_{other}"] = far_op.ratio
        lines.append(
            f"each op on the inputs that {label(other)} had: {len(found)} results, at most {times(far_op.ratio)} the "
            f"noise floor ({far_op.name})"
        )
        if wrong := next((local for local in found if local.is_wrong), None):
            lines.append(f"   the first that is another than {label(other)}': {wrong.name}, off by {wrong.error:.3g}")
            facts[f"first_fed_{other}"] = wrong.name
            verdict = "bug"
    lines += [f"not laid beside the trace, which is judged by itself: {session.aside}"] if session.aside else []
    if session.has_trace and "trace" not in results.drift:
        lines.append("the trace has no whole result to be laid beside ours")
    return Stage("layers", verdict, lines, facts)


def logits_stage(session: Session) -> Stage:
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
        if head > DRIFT_LIMIT and (again := _unrounded(session, other)):
            head = _head(again)
        if head > DRIFT_LIMIT:
            lines.append(f"that is {times(head)} what rounding does to a whole run{_weight(results, other)}")
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


def _text(session: Session) -> str:
    return "the random ids" if session.drawn else "the trace's ids" if session.has_trace else "the text"


def _weight(results: Results, other: str) -> str:
    """Said of a distance to a side that rounds more than we do, which is no verdict.

    Where attention is decided by a hair, such roundings turn it, and all that follows is another text's.
    """
    if other not in results.spread_beside:
        return ""
    return f"; it rounds more than Karat, so its ops decide, each on its own inputs (stage {other})"


def _head(drifts: "list[Drift] | tuple[()]") -> float:
    """How far the logits are."""
    return next((drift.ratio for drift in drifts if drift.name == "lm_head"), 0.0)


def _unrounded(session: Session, other: str) -> list[Drift]:
    """The differences on a cache that rounds nothing; none where ours is one, or the other side's is not."""
    if session.kv_dtype == session.dtype or not session.rounds_nothing(other):
        return []
    results: Results = session.run_unrounded
    return results.drift.get(other, [])
