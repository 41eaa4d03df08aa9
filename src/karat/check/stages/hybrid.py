"""Stage hybrid: parts of a transformers model computed by Karat; the divergence goes with the part that makes it."""

from typing import Any

from karat.check.replay.drift import DRIFT_LIMIT
from karat.check.session import agreement
from karat.check.session.session import CheckSession
from karat.check.session.stage import Stage


def run(session: CheckSession) -> Stage:
    from karat.check.record.hybrid import Hybrid, suspects

    model, plan = session.plan.model, session.plan
    theirs = agreement.load_transformers(model.path)
    runs = Hybrid(theirs, model.config, model.checkpoint, session.ops, session.ids).run(plan.hybrid)
    lines = [
        f"{_mixed(run.part)}: difference {run.from_theirs:.2g} standard deviations from theirs alone, "
        f"{run.from_ours:.2g} from ours alone"
        for run in runs
    ]
    if parts := suspects(runs):
        lines.append(
            f"with {' or '.join(parts)} ours the logits change far above the noise: the divergence arises there"
        )
    facts: dict[str, Any] = {run.part: [run.from_theirs, run.from_ours] for run in runs}
    largest = max(max(run.from_theirs, run.from_ours) for run in runs)
    small = largest <= agreement.HYBRID_LIMIT
    if not small:  # unless rounding alone moves the logits of this model so far
        results = session.run_unrounded
        room = DRIFT_LIMIT * float(results.spread.max() / results.logits["float64"].std())
        lines.append(f"rounding alone, from the token ids on, moves logits by {room / DRIFT_LIMIT:.2g}")
        small = largest <= min(room, 1.0)
    return Stage("hybrid", session.rounding if small else "bug", lines, facts)


def _mixed(part: str) -> str:
    """A hybrid run in words: who computes which part."""
    if part == "none":
        return "transformers alone"
    whose, _, theirs = part.partition(":")
    return f"{theirs} transformers', the rest ours" if whose == "theirs" else f"{part} ours, the rest transformers"
