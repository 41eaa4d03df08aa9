"""The goals of the diagnosis in the zoo, and whether a count reached them.

A goal is reached, missed, or cannot be judged because there are too few cases. A wrong name misses its goal at any
number of cases.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

CASES_A_ROW = 10
A_ROW, OVERALL, LAYERS, PAIRS = 0.80, 0.97, 0.80, 0.70
PAIRS_OF_A_KIND = 20
HEALTHY_RUNS = 1000

State = Literal["reached", "missed", "too few cases"]
# The exit code of a count in which the worst goal is in this state.
EXIT_CODES: Mapping[State, int] = {"reached": 0, "missed": 1, "too few cases": 2}


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal in words, and its count."""

    what: str
    counted: str
    state: State


def counted(outcomes: Counter[str]) -> int:
    """Cases whose bug can be observed."""
    return sum(outcomes.values()) - outcomes["unseen"]


def named(outcomes: Counter[str]) -> int:
    return outcomes["right"] + outcomes["class"]


def goals_of_rows(kind: str, rows: Mapping[str, Counter[str]]) -> list[Goal]:
    """Goals of single bugs: rows holds the outcomes of each bug's cases."""
    total = sum(rows.values(), Counter[str]())
    found = [_no_wrong_name(total["wrong"])]
    if kind == "logits":
        return found
    fewest = min(rows, key=lambda bug: counted(rows[bug]), default=None)
    size = 0 if fewest is None else counted(rows[fewest])
    is_enough = size >= CASES_A_ROW
    where = "" if fewest is None else f" ({fewest})"
    state: State = "reached" if is_enough else "too few cases"
    found.append(Goal(f"at least {CASES_A_ROW} cases a row", f"{size}{where}", state))
    if kind == "layers":
        return [*found, _share("named of what can be observed", total, LAYERS, is_enough)]
    share = {bug: named(outcomes) / counted(outcomes) for bug, outcomes in rows.items() if counted(outcomes)}
    worst = min(share, key=share.__getitem__, default=None)
    found.append(
        Goal(
            f"no row below {A_ROW:.0%}",
            "nothing" if worst is None else f"{share[worst]:.1%} ({worst})",
            _state(0.0 if worst is None else share[worst], A_ROW, is_enough),
        )
    )
    return [*found, _share("named overall", total, OVERALL, is_enough)]


def goals_of_pairs(within: Counter[str], anywhere: Counter[str]) -> list[Goal]:
    """Goals of two bugs at once: outcomes of the pairs within one op, and of those from anywhere."""
    sizes = counted(within), counted(anywhere)
    is_enough = min(sizes) >= PAIRS_OF_A_KIND
    state: State = "reached" if is_enough else "too few cases"
    total = within + anywhere
    return [
        _no_wrong_name(total["wrong"]),
        Goal(f"at least {PAIRS_OF_A_KIND} pairs within one op, and from anywhere", f"{sizes[0]}, {sizes[1]}", state),
        _share("both named", total, PAIRS, is_enough),
    ]


def goals_of_healthy(runs: int, wrong: int) -> list[Goal]:
    """Goals of runs without a fault."""
    state: State = "reached" if runs >= HEALTHY_RUNS else "too few cases"
    return [
        Goal(f"at least {HEALTHY_RUNS:,} runs", f"{runs:,}", state),
        Goal("nothing called wrong", str(wrong), "missed" if wrong else "reached"),
    ]


def worst(goals: Sequence[Goal]) -> State:
    """A goal that is missed comes before one that cannot be judged."""
    states = {goal.state for goal in goals}
    return "missed" if "missed" in states else "too few cases" if "too few cases" in states else "reached"


def goal_lines(goals: Sequence[Goal]) -> list[str]:
    """A table in Markdown."""
    lines = ["| goal | counted | |", "|---|---|---|"]
    return lines + [f"| {goal.what} | {goal.counted} | {goal.state} |" for goal in goals]


def _no_wrong_name(count: int) -> Goal:
    return Goal("no wrong name", str(count), "missed" if count else "reached")


def _share(what: str, outcomes: Counter[str], wanted: float, is_enough: bool) -> Goal:
    good, size = named(outcomes), counted(outcomes)
    share = good / size if size else 0.0
    return Goal(f"{wanted:.0%} {what}", f"{share:.1%} ({good} of {size})", _state(share, wanted, is_enough))


def _state(share: float, wanted: float, is_enough: bool) -> State:
    return "too few cases" if not is_enough else "reached" if share >= wanted else "missed"
