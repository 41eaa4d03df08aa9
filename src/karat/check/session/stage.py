"""The result of a stage of `karat check`: a verdict, lines for people, facts for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# flagged: no proof of a bug, and yet no right run of a good model looks so.
Verdict = Literal["exact", "numerics", "quantisation", "bug", "skipped", "flagged"]
_MEANINGS: Mapping[Verdict, str] = {
    "exact": "fine: what was compared is equal in every bit",
    "numerics": "fine: what differs is rounding, no more than was measured for this model and these tokens",
    "quantisation": "fine: the file's quantised values are computed as they are, and what differs is rounding",
    "bug": "not fine: something differs that rounding does not explain; its stage says what",
}


def meaning(verdict: Verdict, flagged: Sequence[str] = ()) -> str:
    """A verdict of `karat check` in one sentence; "" for "skipped" and "flagged". flagged: stages to look at."""
    text = _MEANINGS.get(verdict, "")
    return f"{text}; look at what is flagged: {', '.join(flagged)}" if text and flagged else text


@dataclass(frozen=True, slots=True)
class Stage:
    """The result of one stage; lines are for people, facts for programs."""

    name: str
    verdict: Verdict
    lines: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def overall(stages: Sequence[Stage]) -> Verdict:
    """The worst verdict of all stages; "flagged" only if no stage has another one.

    "skipped" if all that ran was the stage health and found nothing: it compares nothing, so nothing is exact.
    """
    order: tuple[Verdict, ...] = ("flagged", "exact", "numerics", "quantisation", "bug")
    found = [stage.verdict for stage in stages if stage.verdict != "skipped"]
    worst: Verdict = max(found, key=order.index, default="skipped")
    compared = any(stage.name != "health" for stage in stages if stage.verdict != "skipped")
    return "skipped" if worst == "exact" and not compared else worst
