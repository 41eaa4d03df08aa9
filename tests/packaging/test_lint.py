"""The linters see every file: ruff's default excludes hide folders by name, the other formatters are given lists."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "tools", "training", "benchmarks")


def test_ruff_lists_every_tracked_file() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    tracked = {ROOT / name for name in lines("git", "ls-files", "*.py")}
    seen = {Path(name) for name in lines(sys.executable, "-m", "ruff", "check", "--show-files")}
    assert len(tracked) > 400
    assert {path for path in tracked if path.exists()} <= seen


@pytest.mark.parametrize(
    ("linter", "patterns", "least"),
    [("clang-format --dry-run --Werror", ("*.cpp", "*.h"), 60), ("oxfmt --check", ("*.js", "*.mjs", "*.css"), 40)],
)
def test_make_lint_gives_a_formatter_every_tracked_file(linter: str, patterns: tuple[str, ...], least: int) -> None:
    if any(shutil.which(name) is None for name in ("git", "make")) or not (ROOT / ".git").exists():
        pytest.skip("not a clone, or no make here")
    tracked = set(lines("git", "ls-files", *patterns))
    (command,) = (line for line in lines("make", "--dry-run", "lint") if f"{linter} " in line)
    assert len(tracked) > least
    assert {name for name in tracked if (ROOT / name).exists()} <= set(command.split())


def lines(*command: str) -> list[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_no_line_of_the_page_is_long() -> None:
    """Its formatter breaks no text and no comment."""
    page = [path for path in (ROOT / "src" / "karat" / "server" / "page" / "static").iterdir() if path.is_file()]
    assert len(page) > 40
    rows = ((path.name, line) for path in page for line in path.read_text(encoding="utf-8").splitlines())
    assert [(name, line) for name, line in rows if len(line) > 120] == []


def test_no_line_is_kept_from_the_formatter() -> None:
    """What reads badly as ruff formats it is written in another way: a named list, a table, a string that is split."""
    mark = "# fmt: " + "skip"
    sources = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py*") if path.suffix in (".py", ".pyi"))
    assert [str(path.relative_to(ROOT)) for path in sources if mark in path.read_text(encoding="utf-8")] == []
