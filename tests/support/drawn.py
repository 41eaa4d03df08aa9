"""What `make test` does of slow tests, and of tables whose cases overlap: a part, drawn by the run's seed.

`make test-long` does all of it.

`@pytest.mark.slow`, on a test of more than about three seconds, leaves it in a third of the runs.
`@pytest.mark.drawn(4)` leaves four cases of a parametrised test, `@pytest.mark.drawn(1, each=("family", "stored"))`
as many as it takes for each value of these parameters to be there. `some` draws from what a test goes through itself,
and `examples` says of how many examples of hypothesis.
"""

import os
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

from tests.support.seed import SEED

Case = TypeVar("Case")
SHARE_OF_SLOW = 1 / 3


def examples(number: int) -> int:
    """`number` in a long run, else a third: for tests that need more than the profile of tests/conftest.py draws."""
    return number if "KARAT_LONG" in os.environ else max(1, number // 3)


def some(cases: Iterable[Case], number: int, of: str) -> list[Case]:
    """`number` of the cases in their order, or all in a long run. `of` says whose they are: others draw otherwise."""
    known = list(cases)
    if "KARAT_LONG" in os.environ or number >= len(known):
        return known
    return [known[i] for i in sorted(random.Random(f"{SEED} {of}").sample(range(len(known)), number))]


def covering(cases: Sequence[Mapping[str, Any]], number: int, each: Collection[str], of: str) -> set[int]:
    """Numbers of the cases drawn: `number` of them, or `number` (or all there are) for each value of each parameter."""
    order = list(range(len(cases)))
    random.Random(f"{SEED} {of}").shuffle(order)
    if not each:
        return set(order[:number])
    chosen, seen = set(), Counter[tuple[str, str]]()
    for i in order:
        values = [(name, repr(cases[i][name])) for name in each]
        if any(seen[value] < number for value in values):
            chosen.add(i)
            seen.update(values)
    return chosen


def leave_to_long_runs(items: Iterable[pytest.Item]) -> None:
    """Marks as `long` what is marked `drawn` or `slow` and this run's draw has not."""
    tables: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("slow") and random.Random(f"{SEED} {item.nodeid}").random() > SHARE_OF_SLOW:
            item.add_marker(pytest.mark.long)
        elif isinstance(item, pytest.Function) and item.get_closest_marker("drawn") and not _is_long(item):
            tables.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in tables.items():
        marker = cases[0].get_closest_marker("drawn")
        assert marker is not None
        each = marker.kwargs.get("each", ())
        each = (each,) if isinstance(each, str) else each
        chosen = covering([case.callspec.params for case in cases], marker.args[0], each, name)
        for i, case in enumerate(cases):
            if i not in chosen:
                case.add_marker(pytest.mark.long)


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None
