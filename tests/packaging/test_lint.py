"""The linter sees every Python file: its default excludes hide folders by name."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_ruff_lists_every_tracked_file() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    tracked = {ROOT / name for name in lines("git", "ls-files", "*.py")}
    seen = {Path(name) for name in lines(sys.executable, "-m", "ruff", "check", "--show-files")}
    assert len(tracked) > 400
    assert {path for path in tracked if path.exists()} <= seen


def lines(*command: str) -> list[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
