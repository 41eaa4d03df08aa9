"""What a stage of `karat check` ends in."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["exact", "numerics", "quantisation", "bug", "skipped"]


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage found; lines are for people, facts for programs."""

    name: str
    verdict: Verdict
    lines: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def overall(stages: Sequence[Stage]) -> Verdict:
    """The worst verdict of all stages."""
    order: tuple[Verdict, ...] = ("exact", "numerics", "quantisation", "bug")
    found = [stage.verdict for stage in stages if stage.verdict != "skipped"]
    return max(found, key=order.index, default="skipped")
