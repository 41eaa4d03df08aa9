"""What `make test` leaves to `make test-long` is drawn by the seed, and nothing that was to be there is missing."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.support.drawn import covering, some
from tests.support.seed import of_code

TABLE = [{"family": family, "stored": stored} for family, stored in product("abcdefghij", (1, 2, 3))]


@pytest.mark.parametrize("of", [str(number) for number in range(20)])
def test_each_value_of_each_parameter_is_drawn(of: str) -> None:
    chosen = covering(TABLE, 1, ("family", "stored"), of)
    assert {TABLE[i]["family"] for i in chosen} == set("abcdefghij") and {TABLE[i]["stored"] for i in chosen} == {
        1,
        2,
        3,
    }
    assert len(chosen) < 13
    twice = covering(TABLE, 2, ("family",), of)
    assert len(twice) == 20 and covering(TABLE, 99, ("family",), of) == set(range(30))


def test_other_tests_draw_other_cases_and_all_are_drawn_some_day() -> None:
    draws = [frozenset(covering(TABLE, 4, (), f"test {number}")) for number in range(100)]
    assert {len(draw) for draw in draws} == {4} and len(set(draws)) > 90
    assert frozenset().union(*draws) == set(range(30))


def test_a_long_run_goes_through_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KARAT_LONG", raising=False)
    few = some(range(50), 5, "a test")
    assert len(few) == 5 and few == sorted(few) == some(range(50), 5, "a test") != some(range(50), 5, "another")
    monkeypatch.setenv("KARAT_LONG", "1")
    assert some(range(50), 5, "a test") == list(range(50))


CASES = """
import pytest

@pytest.mark.drawn(1, each="a")
@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", [1, pytest.param(2, marks=pytest.mark.long), 3, 4])
def test_a_table(a, b):
    assert b != 2

@pytest.mark.slow
@pytest.mark.parametrize("c", range(60))
def test_a_slow_one(c):
    pass
"""


def test_the_draw_is_that_of_the_seed(tmp_path: Path) -> None:
    """In a run as `make test` makes it; what is long already is not drawn."""
    tests = Path(__file__).parent
    (tmp_path / "test_it.py").write_text(CASES)
    (tmp_path / "conftest.py").write_text(
        "import pytest\nfrom tests.support.drawn import leave_to_long_runs\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_collection_modifyitems(items): leave_to_long_runs(items)\n"
        "def pytest_configure(config):\n"
        "    for name in ('drawn', 'long', 'slow'): config.addinivalue_line('markers', name)\n"
    )

    def run(seed: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", "-m", "not long", "test_it.py"]
        environment = {
            **os.environ,
            "KARAT_SEED": seed,
            "PYTHONPATH": str(tests.parent),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        return sorted(line.split()[0] for line in done.stdout.splitlines() if " PASSED" in line)

    draws = [run(seed) for seed in ("1", "2", "3")]
    of_table = [[case for case in draw if "table" in case] for draw in draws]
    assert [len(draw) for draw in of_table] == [3, 3, 3] and len(set(map(tuple, of_table))) > 1
    slow = [{case for case in draw if "slow" in case} for draw in draws]
    assert all(5 < len(draw) < 40 for draw in slow) and slow[0] != slow[1] != slow[2]  # 20, and four deviations
    assert run("1") == draws[0]


def test_a_seed_is_that_of_the_committed_code(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        named = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *named, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert of_code(tmp_path) is None
    git("init")
    files = [tmp_path / folder / "file" for folder in ("src", "csrc", "tests")]
    for file in files:
        file.parent.mkdir()
        file.write_text("a")
    git("add", ".")
    git("commit", "-m", "a")
    seeds = [of_code(tmp_path)]
    files[2].write_text("another test of the same code")
    assert seeds[0] and of_code(tmp_path) == seeds[0]
    git("commit", "-am", "b")
    assert of_code(tmp_path) == seeds[0]
    for file in files[:2]:
        file.write_text("b")
        assert of_code(tmp_path) is None
        git("commit", "-am", "c")
        seeds.append(of_code(tmp_path))
    assert len(set(seeds)) == 3 and None not in seeds


@pytest.mark.parametrize("where", [{}, {"CI": "true"}])
def test_examples_of_hypothesis_are_drawn_by_the_seed(where: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-s", "-n", "0", str(tmp_path / "test_it.py")]
    (tmp_path / "test_it.py").write_text(
        "from hypothesis import given, strategies as st\n"
        "@given(st.integers())\n"
        "def test(number): print('drew', number)\n"
    )
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")

    def drawn(of: str) -> list[str]:
        environment = {**os.environ, **where, "KARAT_SEED": of, "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        return [line for line in done.stdout.splitlines() if "drew" in line]

    assert drawn("1") == drawn("1") != drawn("2")
