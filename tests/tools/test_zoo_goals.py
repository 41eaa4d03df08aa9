"""The zoo's goals are asserted: a count that misses one says so, and so does a count too small to tell."""

import random
import sys
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch", reason="transformers needs torch")
from tools.zoo import __main__ as zoo
from tools.zoo import draws
from tools.zoo.goals import (
    EXIT_CODES,
    Goal,
    goals_of_healthy,
    goals_of_pairs,
    goals_of_rows,
    worst,
)
from tools.zoo.run import Case


def _rows(**rows: dict[str, int]) -> dict[str, Counter[str]]:
    return {bug: Counter(outcomes) for bug, outcomes in rows.items()}


def _states(goals: list[Goal]) -> list[str]:
    return [goal.state for goal in goals]


GOOD = {f"bug{i}": {"right": 9, "class": 1, "unseen": 3} for i in range(10)}
R, M, F = "reached", "missed", "too few cases"


@pytest.mark.parametrize(
    ("kind", "rows", "states"),
    [
        ("full", GOOD, [R, R, R, R]),
        ("full", GOOD | {"bug3": {"right": 8, "missed": 2}}, [R, R, R, R]),
        ("full", GOOD | {"bug3": {"right": 7, "silent": 3}}, [R, R, M, R]),
        ("full", {bug: {"right": 9, "missed": 1} for bug in GOOD}, [R, R, R, M]),
        ("full", GOOD | {"bug3": {"right": 19, "wrong": 1}}, [M, R, R, R]),
        ("full", GOOD | {"bug3": {"right": 9, "unseen": 8}}, [R, F, F, F]),
        ("full", GOOD | {"bug3": {}}, [R, F, F, F]),
        ("full", GOOD | {"bug3": {"wrong": 1}}, [M, F, F, F]),
        ("full", {}, [R, F, F, F]),
        ("layers", GOOD | {"bug3": {"missed": 10}}, [R, R, R]),
        ("layers", {bug: {"right": 79, "silent": 21} for bug in GOOD}, [R, R, M]),
        ("layers", GOOD | {"bug3": {"right": 5}}, [R, F, F]),
        ("logits", {"bug": {"missed": 10}}, [R]),
        ("logits", {"bug": {"wrong": 1}}, [M]),
    ],
)
def test_goals_of_single_bugs(kind: str, rows: Any, states: list[str]) -> None:
    assert _states(goals_of_rows(kind, _rows(**rows))) == states


def test_goals_of_pairs_and_of_healthy_runs() -> None:
    good, bad = Counter(right=13, silent=6, **{"class": 1}), Counter(right=13, silent=7)
    assert _states(goals_of_pairs(good, good)) == [R, R, R]
    assert _states(goals_of_pairs(bad, bad)) == [R, R, M]
    assert _states(goals_of_pairs(good, Counter(right=19))) == [R, F, F]
    assert _states(goals_of_pairs(good, Counter(right=19, wrong=1))) == [M, R, R]
    assert _states(goals_of_healthy(1000, 0)) == [R, R]
    assert _states(goals_of_healthy(999, 0)) == [F, R]
    assert _states(goals_of_healthy(1000, 1)) == [R, M]


def test_a_goal_that_is_missed_comes_before_one_that_cannot_be_judged() -> None:
    def goals(*states: Any) -> list[Goal]:
        return [Goal("x", "1", state) for state in states]

    assert EXIT_CODES[worst(goals(R, R))] == 0
    assert EXIT_CODES[worst(goals(R, F))] == 2
    assert EXIT_CODES[worst(goals(F, M, R))] == 1


def _case(outcome: str) -> Case:
    return Case("bias-missing", "s", outcome, ("bias-missing",), (), 1e3)


@pytest.mark.parametrize(
    ("outcome", "count", "code"),
    [("right", 10, 0), ("right", 2, 2), ("silent", 10, 1), ("unseen", 10, 2), ("wrong", 1, 1)],
)
def test_the_command_ends_as_its_goals_say(
    outcome: str, count: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(zoo, "run_case", lambda *_args, **_options: _case(outcome))
    monkeypatch.setattr(sys, "argv", ["zoo", "full", "--only", "bias-missing", "--cases", str(count), "--seed", "1"])
    assert zoo.main() == code
    said = capsys.readouterr().out
    assert "| goal | counted | |" in said
    assert ("missed: " in said, "too few cases: " in said) == (code == 1, code == 2 or count < 10)


def test_cases_are_drawn_until_enough_can_be_observed() -> None:
    outcomes = iter([None, "unseen", "right", "unseen", None, "silent", "right"])

    def run(_seed: str) -> Case | None:
        outcome = next(outcomes)
        return None if outcome is None else _case(outcome)

    found = draws.cases_of(2, run, "s")
    assert [case.outcome for case in found] == ["unseen", "right", "unseen", "silent"]
    tried: list[str] = []
    assert draws.cases_of(2, lambda seed: tried.append(seed), "s") == []
    assert len(tried) == 2 * draws.TRIES


def test_a_pair_from_anywhere_is_none_of_one_op():
    rng = random.Random(29)
    of_one_op = {frozenset(two) for two in draws.ONE_OP}
    assert all(frozenset(draws.a_pair(rng, within=False)) not in of_one_op for _ in range(2000))
    assert {frozenset(draws.a_pair(rng, within=True)) for _ in range(2000)} == of_one_op
