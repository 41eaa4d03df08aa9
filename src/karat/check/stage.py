"""What a stage of `karat check` ends in."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# flagged: nothing that proves a bug, and nothing that a right run of a good model does.
Verdict = Literal["exact", "numerics", "quantisation", "bug", "skipped", "flagged"]


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage found; lines are for people, facts for programs."""

    name: str
    verdict: Verdict
    lines: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def overall(stages: Sequence[Stage]) -> Verdict:
    """The worst verdict of all stages; flags alone, where there is no other.

    Nothing is exact where nothing is compared: of a healthy run alone it is "skipped".
    """
    order: tuple[Verdict, ...] = ("flagged", "exact", "numerics", "quantisation", "bug")
    found = [stage.verdict for stage in stages if stage.verdict != "skipped"]
    worst: Verdict = max(found, key=order.index, default="skipped")
    compared = any(stage.name != "health" for stage in stages if stage.verdict != "skipped")
    return "skipped" if worst == "exact" and not compared else worst
