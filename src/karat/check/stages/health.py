"""Stage health: signs of Karat's run, and the red flags of others (karat.check.diagnosis.signs)."""

from typing import Any

from karat.check.diagnosis.signs import signs
from karat.check.replay.noise import PRECISION
from karat.check.session.other_side import label
from karat.check.session.session import CheckSession
from karat.check.session.stage import Stage


def run(session: CheckSession) -> Stage:
    """Signs of Karat's run, and the red flags of others."""
    found = session.run().health.signs()
    raised = [sign for sign in found if sign.good is False]
    bad = [sign for sign in raised if sign.is_decisive]
    lines = [
        f"{sign.name}: {'NO' if sign.good is False else 'yes'}{f' ({sign.detail})' if sign.detail else ''}"
        for sign in found
    ]
    facts: dict[str, Any] = {sign.name: sign.good for sign in found}
    others = dict(session.beside) | ({} if session.other is None else {"trace": session.other})
    for other, trace in others.items():
        seen = signs(session.plan.model.graph, trace, PRECISION[trace.info.dtype])
        flags = [sign for sign in seen if sign.good is False]
        bad += [sign for sign in flags if sign.is_decisive]
        told = "; ".join(f"{sign.name}: NO{f' ({sign.detail})' if sign.detail else ''}" for sign in flags)
        lines.append(f"{label(other)}: {told or f'{len(seen)} signs, no red flag'}")
        facts[f"flags_of_{other}"] = [sign.name for sign in flags]
    return Stage("health", "bug" if bad else "flagged" if raised else "exact", lines, facts)
