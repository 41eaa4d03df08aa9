"""A planted bug: subclasses of the engine's rooms, and what a maintainer would say of it."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from tools.zoo.strangers.engine import Parts, Setting

# part: the mistake is in one rank, step, sequence, type or single place (part A of what was asked); port: any other.
Group = Literal["part", "port"]


@dataclass(frozen=True)
class Bug:
    name: str
    expected: str  # what it is and where, decided before any diagnosis was seen
    classes: tuple[type, ...]  # subclasses of Shards, Worker, Cache, Blocks, Scheduler, Comm, Sampler
    group: Group
    model: str
    setting: Setting
    says: str  # the mistake, as it is in the code

    @property
    def parts(self) -> Parts:
        """The engine's classes with the bug in them."""
        replaced: dict[str, type] = {}
        for field in fields(Parts):
            base: type = field.default  # type: ignore[assignment]
            planted = tuple(x for x in self.classes if issubclass(x, base))
            replaced[field.name] = type(base.__name__, planted, {}) if planted else base
        return Parts(**replaced)


def plant(group: Group, model: str, name: str, expected: str, **setting: Any) -> Callable[[type], Bug]:
    """Make a bug of a subclass. Its docstring says the mistake."""

    def of(planted: type) -> Bug:
        return Bug(name, expected, (planted,), group, model, Setting(**setting), planted.__doc__ or "")

    return of


def pair(name: str, expected: str, one: Bug, two: Bug, **setting: Any) -> Bug:
    """Both at once, in the first one's model."""
    says = f"{one.says} {two.says}"
    return Bug(name, expected, one.classes + two.classes, "part", one.model, Setting(**setting), says)
