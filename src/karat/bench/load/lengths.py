"""Lengths: how many tokens prompts and answers have. A fixed number, or a stated distribution with its bounds."""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from karat.errors import UsageError

FORMS = "N, uniform:LOW:HIGH, normal:MEAN:SD:LOW:HIGH or lognormal:MEDIAN:SIGMA:LOW:HIGH"
Kind = Literal["fixed", "uniform", "normal", "lognormal"]
_NUM_VALUES = {"uniform": 2, "normal": 4, "lognormal": 4}
_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Lengths:
    """Whole numbers from `low` to `high`, both included.

    uniform: each as likely. normal: rounded, with this mean and standard deviation before what is outside the bounds is
    drawn again. lognormal: likewise; `centre` is the median, `spread` the deviation of the logarithm.
    """

    kind: Kind
    low: int
    high: int
    centre: float = 0
    spread: float = 0

    @classmethod
    def parse(cls, text: str, option: str) -> Self:
        """Raises UsageError for another form than FORMS."""
        name, *values = text.split(":")
        try:
            if not values:
                return cls._checked("fixed", int(name), int(name))
            if len(values) == _NUM_VALUES.get(name):
                low, high = int(values[-2]), int(values[-1])
                if name == "uniform":
                    return cls._checked("uniform", low, high)
                centre, spread = float(values[0]), float(values[1])
                if name == "normal":
                    return cls._checked("normal", low, high, centre, spread)
                return cls._checked("lognormal", low, high, centre, spread)
        except ValueError:
            pass
        raise UsageError(f"{option} {text}: expected {FORMS}, with 1 ≤ LOW ≤ HIGH and the centre between them")

    @classmethod
    def _checked(cls, kind: Kind, low: int, high: int, centre: float | None = None, spread: float = 0) -> Self:
        middle = float(low) if centre is None else centre
        if not (1 <= low <= high <= _MAX and low <= middle <= high and 0 <= spread < float("inf")):
            raise ValueError
        return cls(kind, low, high, middle, spread)

    def draw(self, rng: np.random.Generator) -> int:
        while self.kind in ("normal", "lognormal"):
            z = float(rng.standard_normal())
            value = self.centre + self.spread * z if self.kind == "normal" else self.centre * np.exp(self.spread * z)
            if self.low <= round(value) <= self.high:
                return round(value)
        return int(rng.integers(self.low, self.high + 1))

    def __str__(self) -> str:
        if self.kind == "fixed":
            return str(self.low)
        middle = "" if self.kind == "uniform" else f":{self.centre:g}:{self.spread:g}"
        return f"{self.kind}{middle}:{self.low}:{self.high}"
