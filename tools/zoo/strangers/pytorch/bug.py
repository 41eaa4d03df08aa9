"""A planted bug: a subclass of Engine, and what a maintainer would say of it, written before any diagnosis."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.zoo.strangers.bug import Group
from tools.zoo.strangers.expected import Expect
from tools.zoo.strangers.pytorch.engine import Engine, Setting


@dataclass(frozen=True)
class Bug:
    name: str
    expected: str  # the maintainer's answer
    wants: tuple[Expect, ...]
    planted: type[Engine]
    group: Group
    model: str
    setting: Setting

    @property
    def says(self) -> str:
        return self.planted.__doc__ or ""


BUGS: list[Bug] = []


def plant(
    group: Group, model: str, name: str, names: str, places: str, expected: str, near: str = "", **setting: Any
) -> Callable[[type[Engine]], type[Engine]]:
    """`names`, `places` and `near` are words; see Expect."""

    def of(planted: type[Engine]) -> type[Engine]:
        want = Expect(tuple(names.split()), tuple(places.split()), tuple(near.split()))
        BUGS.append(Bug(name, expected, (want,), planted, group, model, Setting(**setting)))
        return planted

    return of


def both(name: str, one: str, two: str, **setting: Any) -> None:
    """Two bugs of one model at once."""
    first, second = (next(bug for bug in BUGS if bug.name == x) for x in (one, two))
    planted = type("Engine", (first.planted, second.planted), {"__doc__": f"{first.says} {second.says}"})
    expected = f"{first.expected}; and {second.expected}"
    wants = first.wants + second.wants
    BUGS.append(Bug(name, expected, wants, planted, "part", first.model, Setting(**setting)))
