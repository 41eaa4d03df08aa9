"""Stage layers: every op on its own inputs, and the errors that accumulate."""

from typing import Any

import numpy as np

from karat.check.diagnosis.wording import diagnosis_lines, times
from karat.check.replay.drift import DRIFT_LIMIT
from karat.check.session.other_side import label, rounding_note, unrounded_drift
from karat.check.session.session import CheckSession
from karat.check.session.stage import Stage, Verdict


def run(session: CheckSession) -> Stage:
    """Each op on its own inputs, and the accumulated errors against float64 and every other side."""
    results, graph = session.run(), session.plan.model.graph
    diagnosis = results.diagnosis
    worst = max(results.findings, key=lambda f: f.ratio)
    drift = max(results.drift["float64"], key=lambda d: d.ratio)
    lines = (
        diagnosis_lines(diagnosis, graph, results.info)[2:]
        if not diagnosis.is_healthy
        else [
            f"{len(results.findings)} results, each re-run in float64 from its recorded inputs: at most "
            f"{times(worst.ratio)} the noise floor ({worst.name})",
            f"accumulated from the token ids on: at most {times(drift.ratio)} ({drift.name})",
        ]
    )
    if (close := results.choices.text) is not None:
        lines.append(f"{close}: others than in float64, whose logits are within the floor of each other")
    exact = all(finding.exact for finding in results.findings)
    right = diagnosis.is_healthy and np.isfinite(drift.ratio)
    verdict: Verdict = "bug" if not right else "exact" if exact else session.rounding
    facts: dict[str, Any] = {"worst": worst.name, "ratio": worst.ratio, "drift": drift.ratio}
    if results.choices.num:
        facts |= {"choices": results.choices.num, "close_choices": sum(results.choices.close.values())}
    for other, drifts in results.drift.items():
        if other == "float64":
            continue
        lines += [results.known[other].text] if other in results.known else []
        far = max(drifts, key=lambda d: d.ratio)
        first = next((d for d in drifts if not d.ratio <= DRIFT_LIMIT), None)
        facts[f"against_{other}"] = far.ratio
        lines.append(f"against {label(other)}: at most {times(far.ratio)} ({far.name})")
        if first is not None and (again := unrounded_drift(session, other)):
            # Their cache rounds nothing and Karat's does: both are compared on a cache that does not.
            far = max(again, key=lambda d: d.ratio)
            first = next((d for d in again if not d.ratio <= DRIFT_LIMIT), None)
            lines[-1] += f"; on a {session.dtype} cache, as {label(other)} has it, {times(far.ratio)} ({far.name})"
        if other in results.apart and (token := results.apart[other].first) is not None:
            close = results.apart[other].choices.text or "numerics (a close choice): the same experts in another order"
            lines.append(f"   up to token {token}: from there on both chose other experts; {close}")
        if first is not None:
            note = rounding_note(results, other)
            lines.append(f"   {label(other)} is left first at {first.name}: off by {first.largest:.3g}{note}")
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
