"""A bug that the diagnosis names, and a way to make it. karat.check.mistakes.bugs has all bugs."""

from dataclasses import dataclass, field

from karat.check.mistakes.part import Part
from karat.check.model.graph import Edits


@dataclass(frozen=True, slots=True)
class Bug:
    """title: what is wrong; remedy: what to change."""

    title: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute wrongly: nodes with other parameters.

    fitted: a number of it comes from the trace; part: where it is made, None: everywhere (karat.check.mistakes.parts).
    outside: what the same mistake changes elsewhere.
    """

    bug: str
    detail: str
    edits: Edits
    fitted: bool = False
    part: Part | None = None
    outside: Edits = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """What is the same mistake at another place."""
        return (self.bug, self.detail if self.part is None else f"{self.detail}, {self.part.text}")

    @property
    def text(self) -> str:
        """How it is made, in words."""
        extent = "" if self.part is None or not self.part.extent else f" ({self.part.extent})"
        return f"{self.key[1]}{extent}"
